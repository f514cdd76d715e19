"""Toxics by type: those of this package, and plug-ins.

A plug-in declares the entry point `type = "package.module:ToxicClass"` in the group `unstale.toxics`; the class derives
from `Toxic`. A plug-in cannot replace a built-in type.
"""

from collections.abc import Mapping
from typing import Any

from unstale.errors import UserError
from unstale.plugins import Registry
from unstale.toxics.bandwidth import Bandwidth
from unstale.toxics.blackout import Blackout
from unstale.toxics.corrupt import Corrupt
from unstale.toxics.disconnect import Disconnect
from unstale.toxics.drop import Drop
from unstale.toxics.dropout import Dropout
from unstale.toxics.duplicate import Duplicate
from unstale.toxics.latency import Latency
from unstale.toxics.reorder import Reorder
from unstale.toxics.slow import Slow
from unstale.toxics.toxic import Toxic
from unstale.toxics.validation import errors_at, shown, validated

_BUILT_IN = (Bandwidth, Blackout, Corrupt, Disconnect, Drop, Dropout, Duplicate, Latency, Reorder, Slow)
TOXICS: dict[str, type[Toxic]] = {toxic.type: toxic for toxic in _BUILT_IN}
REGISTRY = Registry(kind="toxic", base=Toxic, where="unstale.toxics.toxic", built_in=TOXICS)


def names() -> tuple[str, ...]:
    """Every registered type, sorted."""
    return REGISTRY.names()


def find(name: str) -> type[Toxic]:
    """The class of a type. Raises UserError for an unknown type, or one that cannot be imported."""
    return REGISTRY.find(name)


def create(mapping: Any, where: str) -> Toxic:
    """Make a toxic from plain data, its `type` and its settings. Reads trace files.

    Raises UserError whose message begins with `where`, such as `scenario lte.yaml, group everyone, toxic 2`.
    """
    if not isinstance(mapping, Mapping):
        raise UserError(f"{where} is {shown(mapping)}, expected a mapping with a type")
    if "type" not in mapping:
        raise UserError(f"{where} has no type, expected one of {', '.join(names())}")
    settings = dict(mapping)
    name = settings.pop("type")
    if not isinstance(name, str):
        raise UserError(f"{where}: type is {shown(name)}, expected one of {', '.join(names())}")
    with errors_at(where):
        toxic_class = find(name)
    return validated(toxic_class, settings, f"{where} ({name})")


def plain(toxic: Toxic) -> dict[str, Any]:
    """The plain data of a toxic, from which `create` makes an equal one."""
    return {"type": toxic.type, **toxic.model_dump(mode="json", exclude_none=True)}
