"""Compensators: what a stale update is turned into before the policy sees it. One file a method."""

from unstale.compensators.compensator import (
    Compensated,
    Compensator,
    CompensatorContext,
    FreshUpdate,
    Made,
    MeasuredError,
    Outcome,
    StaleRound,
    StaleUpdate,
)
from unstale.compensators.local_update import LocalSteps
from unstale.compensators.network import Network
from unstale.compensators.registry import CompensatorDescription, create, describe, names

__all__ = [
    "Compensated",
    "Compensator",
    "CompensatorContext",
    "CompensatorDescription",
    "FreshUpdate",
    "LocalSteps",
    "Made",
    "MeasuredError",
    "Network",
    "Outcome",
    "StaleRound",
    "StaleUpdate",
    "create",
    "describe",
    "names",
]
