"""The result of a check of a policy."""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Expected and actual result as texts, and whether the check passed."""

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
    """Make a finding that passes without problems; otherwise the first problem is the actual result."""
    return Finding(expected=expected, got=problems[0] if problems else expected, passed=not problems)


def off(got_d: Tensor, expected_d: Tensor) -> float:
    """Return the largest difference over max(1, largest expected number); infinity for NaN, 0 for empty tensors."""
    if expected_d.numel() == 0:
        return 0.0
    difference = float((got_d - expected_d).abs().max()) / max(1.0, float(expected_d.abs().max()))
    return math.inf if math.isnan(difference) else difference
