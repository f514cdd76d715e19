"""How the values are declared of which one or more are made for every update."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

Value = TypeVar("Value")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def value(cls: type[Value]) -> type[Value]:
    """A dataclass with slots, keywords only, equal and hashed by its fields, and frozen for the type checker alone.

    `frozen=True` would write each field through `object.__setattr__`: three times the cost of making the value.
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)
