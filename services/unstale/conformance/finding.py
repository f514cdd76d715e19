"""What a check of a policy found."""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was expected and what came, both for people, and whether that is right."""

    expected: str
    got: str
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the report: one case of one policy. verdict: `pass`, `fail`, or `error` where the case raised."""

    policy: str
    case: str
    expected: str
    got: str
    verdict: str


def no_problems(expected: str, problems: list[str]) -> Finding:
    """Right when there is no problem; else the first one is what came."""
    return Finding(expected=expected, got=problems[0] if problems else expected, passed=not problems)


def off(got_d: Tensor, expected_d: Tensor) -> float:
    """The largest difference, relative to the largest number expected where that is above 1; infinite for a NaN.

    0 where there is no number.
    """
    if expected_d.numel() == 0:
        return 0.0
    difference = float((got_d - expected_d).abs().max()) / max(1.0, float(expected_d.abs().max()))
    return math.inf if math.isnan(difference) else difference
