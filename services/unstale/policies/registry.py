"""Policies by name: the built-in ones, and plug-ins, which other packages register.

A plug-in is an entry point `name = "package.module:PolicyClass"` of the group `unstale.policies`; the class derives
from `Policy`. A plug-in cannot replace a built-in policy.
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
from unstale.policies.catalogue import CLASSES, GROUP
from unstale.policies.policy import Policy, PolicyContext, host_memory
from unstale.settings.values import Section

_BUILT_IN: dict[str, type[Policy[Any]]] = {
    name: EntryPoint(name, value, GROUP).load() for name, value in CLASSES.items()
}
REGISTRY: plugins.Registry[Policy[Any]] = plugins.Registry(
    kind="policy", base=Policy, where="unstale.policies", built_in=_BUILT_IN
)

PROFILES = ("paper", "reference")
"""Sources of default settings: the text of the policy's paper, or the code that its authors released."""

RESERVED = frozenset(("dimension", "clients", "device", "seed", "round_size", "rounds", "allocate", "profile"))
"""Parameters of `create`, which no setting of a policy may be named after; the conformance checks verify it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDescription:
    """A policy in words. Fields are keys of `unstale policies --json`. memory: its state between rounds.

    loops: kinds of rounds that its source defines it for. training: the local training that it needs, None for any.
    needs_base_models: whether the server keeps the base version of every open task and pending update.
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
    """The names of all policies, sorted. Imports no plug-in."""
    return REGISTRY.names()


def describe(name: str) -> PolicyDescription:
    """The description of a policy and its settings. Raises UserError as `find`."""
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
    """A policy before its first round.

    profile, settings: as in `settings_of`; the other arguments as in `PolicyContext`. Raises UserError.
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
    """The settings of a policy. values: by the names in `describe(name).settings`; others have their defaults.

    Defaults depend on the profile, one of `PROFILES`, and on `synchronous`: whether rounds wait for all participants.
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
    """The class of a policy. Raises UserError for an unknown name, or a class that cannot be imported."""
    return REGISTRY.find(name)
