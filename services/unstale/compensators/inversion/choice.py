"""How far to invert, how much of the rest to add, and how far to trust it: learned from what later updates tell.

An update holds noise of its own (dropout, the draw of mini-batches), which a reconstruction that goes on too long
explains as well, and then carries to the current model. How long is too long depends on model and clients; so the
errors decide.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, NamedTuple

FIRST_MARK = 5
RESIDUALS = (0.0, 0.5, 1.0)
TRUSTS = (0.25, 0.5, 0.75, 1.0)


class Choice(NamedTuple):
    """iterations: after which a reconstruction is used. residual: share of what it leaves unexplained that is added.
    trust: what part of the result that is, the rest being the update as it came."""

    iterations: int
    residual: float
    trust: float


def marks(iterations: int) -> tuple[int, ...]:
    """Where an inversion of so many iterations is looked at: after 5, 10, 20, ... of them, and at its end."""
    found = []
    mark = FIRST_MARK
    while mark < iterations:
        found.append(mark)
        mark *= 2
    return (*found, iterations)


def next_mark(iterations: int) -> int:
    """The mark behind one."""
    return 2 * iterations


class Trial(NamedTuple):
    """How an estimate did beside the stale update itself. share: its L1 error over that of the stale update. cosine:
    its cosine error less that of the stale update."""

    share: float
    cosine: float


class Trials:
    """How each choice did. window: how many times are kept of each."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._errors: dict[Choice, deque[Trial]] = {}

    def add(self, choice: Choice, trial: Trial) -> None:
        """One more."""
        self._errors.setdefault(choice, deque(maxlen=self._window)).append(trial)

    def of(self, choice: Choice) -> Trial | None:
        """How one did, in the mean; None while it was not tried as often as the window holds."""
        errors = self._errors.get(choice, ())
        if len(errors) < self._window:
            return None
        return Trial(fmean(trial.share for trial in errors), fmean(trial.cosine for trial in errors))

    def best(self) -> Choice | None:
        """The one with the smallest mean error, and of equal ones that with the fewest iterations; None while no choice
        has as many errors as the window holds."""
        means = {choice: mean for choice in self._errors if (mean := self.of(choice)) is not None}
        return min(means, key=lambda choice: (means[choice].share, choice), default=None)

    def state_dict(self) -> list[list[Any]]:
        return [
            [*choice, [list(trial) for trial in errors]] for choice, errors in sorted(self._errors.items())
        ]

    def load_state_dict(self, state: Iterable[Any]) -> None:
        self._errors = {
            Choice(iterations, residual, trust): deque(
                (Trial(*trial) for trial in errors), maxlen=self._window
            )
            for iterations, residual, trust, errors in state
        }


def nearest(kept: Mapping[int, Any], iterations: int) -> int:
    """The last of the marks that are kept and not behind so many iterations; else the first."""
    return max((mark for mark in kept if mark <= iterations), default=min(kept))
