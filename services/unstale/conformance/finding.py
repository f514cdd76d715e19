"""The result of a check of a policy."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps

from torch import Tensor

from unstale.conformance.policy_under_test import PolicyUnderTest


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Expected and actual result as texts, and whether the check passed."""

    expected: str
    got: str
    passed: bool


def no_problems(expected: str, problems: list[str]) -> Finding:
    """Make a finding that passes without problems; otherwise the first problem is the actual result."""
    return Finding(expected=expected, got=problems[0] if problems else expected, passed=not problems)


def law(expected: str) -> Callable[[Callable[[PolicyUnderTest], Iterable[str]]], Callable[[PolicyUnderTest], Finding]]:
    """Make a law of a function that gives the problems of a policy."""

    def of(problems: Callable[[PolicyUnderTest], Iterable[str]]) -> Callable[[PolicyUnderTest], Finding]:
        @wraps(problems)
        def check(tested: PolicyUnderTest) -> Finding:
            return no_problems(expected, list(problems(tested)))

        return check

    return of


def off(got_d: Tensor, expected_d: Tensor) -> float:
    """Return the largest difference over max(1, largest expected number); infinity for NaN, 0 for empty tensors."""
    if expected_d.numel() == 0:
        return 0.0
    difference = float((got_d - expected_d).abs().max()) / max(1.0, float(expected_d.abs().max()))
    return math.inf if math.isnan(difference) else difference
