"""Policies by name: the ones in this folder, and those that other packages register as `unstale.policies`.

A plug-in declares the entry point `name = "package.module:PolicyClass"` in the group; the class derives from
`Policy`. A name of this folder cannot be taken over.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

import torch
from torch import Tensor

from unstale import part_settings, plugins
from unstale.errors import UserError, unknown_name
from unstale.part_settings import SettingDescription
from unstale.policies.catalogue import CLASSES, ENTRY_POINT_GROUP
from unstale.policies.policy import Policy, PolicyContext, host_memory
from unstale.settings.values import Section

_BUILT_IN: dict[str, type[Policy[Any]]] = {
    name: EntryPoint(name, value, ENTRY_POINT_GROUP).load() for name, value in CLASSES.items()
}

PROFILES = ("paper", "reference")
"""`paper`: settings default to what the paper says; `reference`: to what its authors' released code does."""

RESERVED = frozenset(("dimension", "clients", "device", "seed", "round_size", "rounds", "allocate", "profile"))
"""Parameters of `create`: no policy has a setting of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDescription:
    """A policy, for people. loops: those that its source defines it for. memory: what it keeps between rounds.

    training: the local training that it needs, None for any. needs_base_models: the server keeps every model that an
    update may refer to.
    """

    name: str
    summary: str
    source: str
    loops: tuple[str, ...]
    memory: str
    training: str | None
    needs_base_models: bool
    settings: tuple[SettingDescription, ...]


def names() -> tuple[str, ...]:
    """The names of all policies, sorted; no plug-in is imported for it."""
    return plugins.names(ENTRY_POINT_GROUP, _BUILT_IN)


def describe(name: str) -> PolicyDescription:
    """What a policy is and takes. Raises UserError for a name that is not registered."""
    policy_class = find(name)
    return PolicyDescription(
        name=name,
        summary=plugins.summary(policy_class),
        source=plugins.source(policy_class),
        loops=policy_class.loops,
        memory=policy_class.memory,
        training=policy_class.training,
        needs_base_models=policy_class.needs_base_models,
        settings=part_settings.described(
            policy_class.Settings,
            synchronous=policy_class.synchronous_defaults,
            reference=policy_class.reference_defaults,
        ),
    )


def create(
    name: str,
    /,
    *,
    dimension: int,
    clients: int,
    device: torch.device | str = "cpu",
    seed: int = 0,
    round_size: int | None = None,
    rounds: int | None = None,
    allocate: Callable[[int, int], Tensor] = host_memory,
    profile: str = "paper",
    **settings: Any,
) -> Policy[Any]:
    """A policy in its first state.

    dimension to allocate: as in `PolicyContext`. profile, settings: as in `settings_of`. Raises UserError.
    """
    policy_class = find(name)
    for key, value in (("dimension", dimension), ("clients", clients)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{key} is {value!r}, expected a whole number >= 1")
    try:
        device = torch.device(device)
    except RuntimeError:
        raise UserError(f"device is {device!r}, expected cpu, cuda, cuda:<number> or mps") from None
    context = PolicyContext(
        dimension=dimension,
        clients=clients,
        device=device,
        seed=seed,
        round_size=round_size,
        rounds=rounds,
        allocate=allocate,
    )
    return policy_class(settings_of(name, settings, profile=profile), context)


def settings_of(name: str, values: Mapping[str, Any], *, profile: str = "paper", synchronous: bool = False) -> Section:
    """The settings of a policy: the chosen values, as `describe(name)` lists them, and its defaults.

    Defaults depend on the profile, one of `PROFILES`, and on `synchronous`: whether rounds wait for their participants.
    Raises UserError for an unknown policy, profile or setting, or a value out of bounds.
    """
    policy_class = find(name)
    if profile not in PROFILES:
        raise unknown_name("profile", profile, PROFILES)
    defaults = {
        **(policy_class.synchronous_defaults if synchronous else {}),
        **(policy_class.reference_defaults if profile == "reference" else {}),
    }
    return part_settings.checked("policy", name, policy_class.Settings, {**defaults, **values})


def find(name: str) -> type[Policy[Any]]:
    """The class of a policy. Raises UserError for a name that is not registered, or cannot be imported."""
    return plugins.load("policy", name, ENTRY_POINT_GROUP, Policy, "unstale.policies.Policy", _BUILT_IN)
