"""Compensators by name: those of this package, and plug-ins.

A plug-in declares the entry point `name = "package.module:CompensatorClass"` in the group `unstale.compensators`; the
class derives from `Compensator`. A plug-in cannot replace a built-in name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unstale import part_settings, plugins
from unstale.compensators.compensator import UNCHANGED, Compensator, CompensatorContext
from unstale.compensators.first_order import FirstOrder
from unstale.compensators.gradient_inversion import Auto, GradientInversion
from unstale.compensators.oracle import Oracle
from unstale.errors import UserError
from unstale.part_settings import SettingDescription

_BUILT_IN: dict[str, type[Compensator[Any]]] = {
    "auto": Auto,
    "first-order": FirstOrder,
    "gradient-inversion": GradientInversion,
    "oracle": Oracle,
}
REGISTRY: plugins.Registry[Compensator[Any]] = plugins.Registry(
    kind="compensator", base=Compensator, where="unstale.compensators", built_in=_BUILT_IN, other_names=(UNCHANGED,)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompensatorDescription:
    """A compensator, for people. See the attributes of `Compensator`."""

    name: str
    summary: str
    source: str
    memory: str = "none"
    inverts: bool = False
    only_simulated: bool = False
    settings: tuple[SettingDescription, ...] = ()


def names() -> tuple[str, ...]:
    """The names of all compensators, `none` first, then sorted. Imports no plug-in."""
    return (UNCHANGED, *(name for name in REGISTRY.names() if name != UNCHANGED))


def describe(name: str) -> CompensatorDescription:
    """Describe a compensator and its settings. Raises UserError for an unknown name."""
    if name == UNCHANGED:
        return CompensatorDescription(
            name=name, summary="Stale updates stay as they are.", source="docs/methods/compensators.md#none"
        )
    compensator_class = find(name)
    return CompensatorDescription(
        name=name,
        summary=plugins.summary(compensator_class),
        source=plugins.source(compensator_class),
        memory=compensator_class.memory,
        inverts=compensator_class.inverts,
        only_simulated=compensator_class.only_simulated,
        settings=part_settings.described(compensator_class.Settings),
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
    compensator_class = find(name)
    return compensator_class(part_settings.checked("compensator", name, compensator_class.Settings, settings), context)


def find(name: str) -> type[Compensator[Any]]:
    """The class of a compensator. Raises UserError for an unknown name, or one that cannot be imported."""
    return REGISTRY.find(name)
