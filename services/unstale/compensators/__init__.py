"""Compensators replace stale updates before the policy sees them."""

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
from unstale.compensators.network import LocalSteps, Network
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
