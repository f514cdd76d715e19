"""Aggregation policies: how the updates of a round become one step of the server. One file a method.

The names of this package are imported when they are first used, because the policies import torch and a list of them
(`unstale.policies.catalogue`) need not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unstale.part_settings import SettingDescription
    from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch
    from unstale.policies.registry import PolicyDescription, create, describe, names

_MODULES = {
    "Policy": "unstale.policies.policy",
    "PolicyContext": "unstale.policies.policy",
    "PolicyDescription": "unstale.policies.registry",
    "PolicySettings": "unstale.policies.policy",
    "SettingDescription": "unstale.part_settings",
    "Step": "unstale.policies.policy",
    "UpdateBatch": "unstale.policies.policy",
    "create": "unstale.policies.registry",
    "describe": "unstale.policies.registry",
    "names": "unstale.policies.registry",
}

__all__ = [
    "Policy",
    "PolicyContext",
    "PolicyDescription",
    "PolicySettings",
    "SettingDescription",
    "Step",
    "UpdateBatch",
    "create",
    "describe",
    "names",
]


def __getattr__(name: str) -> Any:
    """A name of this package, imported now. Raises AttributeError."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
