"""Toxics by type: the ones in this folder, and those that other packages register as `unstale.toxics`.

A plug-in declares the entry point `type = "package.module:ToxicClass"` in the group; the class derives from `Toxic`. A
type of this folder cannot be taken over.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from unstale import plugins
from unstale.errors import UserError
from unstale.toxics.bandwidth import Bandwidth
from unstale.toxics.blackout import Blackout
from unstale.toxics.corrupt import Corrupt
from unstale.toxics.disconnect import Disconnect
from unstale.toxics.drop import Drop
from unstale.toxics.dropout import Dropout
from unstale.toxics.duplicate import Duplicate
from unstale.toxics.latency import Latency
from unstale.toxics.mistakes import shown, user_error
from unstale.toxics.reorder import Reorder
from unstale.toxics.slow import Slow
from unstale.toxics.toxic import Toxic

ENTRY_POINT_GROUP = "unstale.toxics"

TOXICS: dict[str, type[Toxic]] = {
    toxic.type: toxic
    for toxic in (
        Bandwidth,
        Blackout,
        Corrupt,
        Disconnect,
        Drop,
        Dropout,
        Duplicate,
        Latency,
        Reorder,
        Slow,
    )
}
"""Those of this folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDescription:
    """A setting of a toxic, for people. default: as plain data; None with `required` true means that there is none."""

    name: str
    default: Any
    required: bool
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToxicDescription:
    """A toxic, for people. destroys: it may lose messages. settings: its own; `COMMON` are those of every toxic."""

    type: str
    summary: str
    destroys: bool
    settings: tuple[SettingDescription, ...]


def names() -> tuple[str, ...]:
    """Every type that is registered, sorted."""
    return plugins.names(ENTRY_POINT_GROUP, TOXICS)


def find(name: str) -> type[Toxic]:
    """The class of a type. Raises UserError for one that is not registered, or cannot be imported."""
    if name in TOXICS:
        return TOXICS[name]
    loaded: type[Toxic] = plugins.load(
        "toxic", name, ENTRY_POINT_GROUP, Toxic, "unstale.toxics.toxic.Toxic", TOXICS
    )
    return loaded


def create(mapping: Any, where: str) -> Toxic:
    """A toxic from plain data, as it stands in YAML or JSON: its `type` and its settings.

    where: it stands, for the sentence of a UserError, such as `scenario lte.yaml, group everyone, toxic 2`. Traces are
    read here.
    """
    if not isinstance(mapping, Mapping):
        raise UserError(f"{where} is {shown(mapping)}, expected a mapping with a type")
    if "type" not in mapping:
        raise UserError(f"{where} has no type, expected one of {', '.join(names())}")
    name = mapping["type"]
    if not isinstance(name, str):
        raise UserError(f"{where}: type is {shown(name)}, expected one of {', '.join(names())}")
    try:
        toxic_class = find(name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    settings = {key: value for key, value in mapping.items() if key != "type"}
    try:
        return toxic_class.model_validate(settings)
    except ValidationError as error:
        raise user_error(error, toxic_class, f"{where} ({name})") from None


def plain(toxic: Toxic) -> dict[str, Any]:
    """The plain data of a toxic, fit for YAML and JSON: `create` makes an equal one of it."""
    return {"type": toxic.type, **toxic.model_dump(mode="json", exclude_none=True)}


def describe() -> tuple[ToxicDescription, ...]:
    """Every toxic that is registered, sorted by type."""
    return tuple(_description(name, find(name)) for name in names())


def _description(name: str, toxic_class: type[Toxic]) -> ToxicDescription:
    summary, _, _ = (inspect.getdoc(toxic_class) or "").partition("\n")
    return ToxicDescription(
        type=name,
        summary=summary,
        destroys=toxic_class.destroys,
        settings=tuple(
            setting
            for setting in _settings(toxic_class.model_fields)
            if setting.name not in Toxic.model_fields
        ),
    )


def _settings(fields: Mapping[str, FieldInfo]) -> tuple[SettingDescription, ...]:
    return tuple(
        SettingDescription(
            name=name,
            default=None
            if field.is_required()
            else field.get_default(call_default_factory=True, validated_data={}),
            required=field.is_required(),
            description=field.description or "",
        )
        for name, field in fields.items()
    )


COMMON = _settings(Toxic.model_fields)
"""The settings of every toxic."""
