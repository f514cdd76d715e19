"""Compensators by name: the ones in this folder, and those that other packages register as `unstale.compensators`.

A plug-in declares the entry point `name = "package.module:CompensatorClass"` in the group; the class derives from
`Compensator`. A name of this folder cannot be taken over.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unstale import part_settings, plugins
from unstale.compensators.auto import Auto
from unstale.compensators.compensator import UNCHANGED, Compensator, CompensatorContext
from unstale.compensators.first_order import FirstOrder
from unstale.compensators.gradient_inversion import GradientInversion
from unstale.compensators.oracle import Oracle
from unstale.errors import UserError
from unstale.part_settings import SettingDescription

ENTRY_POINT_GROUP = "unstale.compensators"

_BUILT_IN: dict[str, type[Compensator[Any]]] = {
    "auto": Auto,
    "first-order": FirstOrder,
    "gradient-inversion": GradientInversion,
    "oracle": Oracle,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompensatorDescription:
    """A compensator, for people. memory: what it keeps between rounds. inverts: whether it reconstructs data of
    clients. only_simulated: whether no server can have it."""

    name: str
    summary: str
    source: str
    memory: str
    inverts: bool
    only_simulated: bool
    settings: tuple[SettingDescription, ...]


def names() -> tuple[str, ...]:
    """The names of all compensators, sorted, and that of none; no plug-in is imported for it."""
    return (UNCHANGED, *(name for name in plugins.names(ENTRY_POINT_GROUP, _BUILT_IN) if name != UNCHANGED))


def describe(name: str) -> CompensatorDescription:
    """What a compensator is and takes. Raises UserError for a name that is not registered."""
    if name == UNCHANGED:
        return CompensatorDescription(
            name=name,
            summary="Stale updates stay as they are.",
            source="docs/methods/compensators.md#none",
            memory="none",
            inverts=False,
            only_simulated=False,
            settings=(),
        )
    found = find(name)
    return CompensatorDescription(
        name=name,
        summary=(inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " "),
        source=found.source,
        memory=found.memory,
        inverts=found.inverts,
        only_simulated=found.only_simulated,
        settings=part_settings.described(found.Settings),
    )


def create(name: str, settings: Mapping[str, Any], context: CompensatorContext) -> Compensator[Any] | None:
    """A compensator in its first state; None for `none`. settings: as `describe(name)` lists them. Raises UserError."""
    if name == UNCHANGED:
        for key in settings:
            raise UserError(
                f"compensator.settings.{key} is given with compensator.name 'none', which has no settings; leave it "
                "out, or name a compensator"
            )
        return None
    found = find(name)
    return found(part_settings.checked("compensator", name, found.Settings, settings), context)


def find(name: str) -> type[Compensator[Any]]:
    """The class of a compensator. Raises UserError for a name that is not registered, or cannot be imported."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    loaded: type[Compensator[Any]] = plugins.load(
        "compensator",
        name,
        ENTRY_POINT_GROUP,
        Compensator,
        "unstale.compensators.Compensator",
        {UNCHANGED, *_BUILT_IN},
    )
    return loaded
