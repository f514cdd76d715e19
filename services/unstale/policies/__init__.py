"""Aggregation policies: how the updates of a round become one step of the server. One file a method."""

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
