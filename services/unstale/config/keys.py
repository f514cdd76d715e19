"""The keys of the configuration, one for each field of `Settings`: file, variables and options have them."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from unstale.config.settings import Settings
from unstale.settings.part import description
from unstale.settings.values import NOUNS, range_of

PREFIX = "UNSTALE_"
_ALL_SETTINGS = ("policy.settings", "compensator.settings", "objective.settings")
OPEN_SECTIONS = (
    *_ALL_SETTINGS,
    *("partition.settings", "training.settings", "trigger.settings", "selector.settings", "client_settings"),
)
"""Keys whose value is a mapping with any keys, which are checked later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key."""

    name: str  # dotted, such as `training.learning_rate`
    description: str
    unit: str  # "" for none
    default: Any
    kind: type  # of a value; `str` for a choice of names
    may_be_null: bool
    expected: str  # type and range in words, such as `a number > 0 and <= 3,600`

    @property
    def variable(self) -> str:
        """The environment variable: `UNSTALE_TRAINING__LEARNING_RATE`."""
        return variable(self.name)

    @property
    def section(self) -> str:
        """The first part of the name; "" for a key outside sections."""
        return self.name.rpartition(".")[0].partition(".")[0]


def open_section(name: str) -> str | None:
    """The open section of a key; None for one of `KEYS`."""
    return next((section for section in OPEN_SECTIONS if name.startswith(f"{section}.")), None)


def flat(name: str) -> str:
    """The key of a name: `training.settings.momentum` is `training.momentum`, as the section has this key."""
    section, _, key = name.partition(".settings.")
    known = f"{section}.{key}"
    is_own = f"{section}.settings" in OPEN_SECTIONS and known not in KEYS and known not in SECTIONS
    return known if key and holds_settings(section) and not is_own else name


def holds_settings(section: str) -> bool:
    """Whether a section chooses a part by `name`: its other keys may also be in a mapping `settings`."""
    return f"{section}.name" in KEYS and f"{section}.settings" not in _ALL_SETTINGS


def variable(name: str) -> str:
    """The environment variable of a key: dots become two underscores."""
    return PREFIX + name.replace(".", "__").upper()


def _keys(model: type[BaseModel], above: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys(field.annotation, f"{above}{name}.")
        else:
            yield _key(above + name, field)


def _key(name: str, field: FieldInfo) -> Key:
    is_union = get_origin(field.annotation) in (Union, UnionType)
    alternatives = get_args(field.annotation) if is_union else (field.annotation,)
    annotation = alternatives[0]
    metadata = list(field.metadata)
    if hasattr(annotation, "__metadata__"):  # `Seconds | None` keeps its bounds inside
        for item in annotation.__metadata__:
            metadata += getattr(item, "metadata", [item])
        annotation = annotation.__origin__
    may_be_null = type(None) in alternatives
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    if get_origin(annotation) is Literal:
        kind: type = str
        expected = " or ".join(get_args(annotation))
    else:
        kind = get_origin(annotation) or annotation
        expected = f"{NOUNS[kind]} {range_of(metadata)}".rstrip()
    return Key(
        name=name,
        description=description(field),
        unit=str(extra.get("unit", "")),
        default=field.default,
        kind=kind,
        may_be_null=may_be_null,
        expected=f"{extra.get('expected', expected)}{' or null' if may_be_null else ''}",
    )


KEYS: dict[str, Key] = {key.name: key for key in _keys(Settings, "")}
"""Every key by its name, in the order of the file."""

SECTIONS: frozenset[str] = frozenset(
    name.rsplit(".", depth)[0] for name in KEYS for depth in range(1, name.count(".") + 1)
)
"""Names of groups of keys, such as `training` and `training.schedule`."""

KEYS_AT_THE_TOP: frozenset[str] = frozenset(name.partition(".")[0] for name in KEYS)
