"""Declaration of the values that are created for every update."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

Value = TypeVar("Value")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def value(cls: type[Value]) -> type[Value]:
    """A dataclass with slots, keyword-only and hashable, frozen for the type checker alone.

    `frozen=True` writes each field through `object.__setattr__`, which takes three times as long.
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)
