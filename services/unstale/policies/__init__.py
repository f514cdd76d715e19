"""Aggregation policies: how the updates of a round become one step of the server.

The names of this package are imported when they are first used, because the policies import torch and a list of them
(`unstale.policies.catalogue`) need not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unstale.part_settings import SettingDescription
    from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch
    from unstale.policies.registry import PolicyDescription, create, describe, names

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
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = (import_module(f"unstale.policies.{module}") for module in ("policy", "registry"))
    globals()[name] = next(vars(module)[name] for module in modules if name in vars(module))
    return globals()[name]
