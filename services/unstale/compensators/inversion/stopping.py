"""Selects the number of iterations, the residual and the trust of inversions from the errors of earlier estimates.

An update contains noise (dropout, the draw of mini-batches). A long inversion reconstructs this noise too, and
transfers it to the current model. The best number of iterations depends on model and clients; later updates show it.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

RESIDUALS = (0.0, 0.5, 1.0)
TRUSTS = (0.25, 0.5, 0.75, 1.0)


class Choice(NamedTuple):
    """How a reconstruction becomes an estimate."""

    iterations: int  # after which the reconstruction is used
    residual: float  # share of the unexplained part of the update that is added
    trust: float  # weight of the result; the update itself has the rest


def loss_checkpoints(iterations: int) -> tuple[int, ...]:
    """Iterations after which the iterate is kept: 5, 10, 20, ... and the last."""
    checkpoints = []
    checkpoint = 5
    while checkpoint < iterations:
        checkpoints.append(checkpoint)
        checkpoint *= 2
    return (*checkpoints, iterations)


class Trial(NamedTuple):
    """Errors of an estimate and of the stale update itself, by L1 and by cosine."""

    l1: float
    cosine: float
    stale_l1: float
    stale_cosine: float

    @property
    def share(self) -> float:
        """Error of the estimate over that of the stale update, which is not 0."""
        return self.l1 / self.stale_l1


class Trials:
    """Trials of each choice, for the last `window` updates that had some."""

    def __init__(self, window: int) -> None:
        self._trials: deque[Mapping[Choice, Trial]] = deque(maxlen=window)

    def add(self, trials: Mapping[Choice, Trial]) -> None:
        """Add the trials of one update, if there are any."""
        if trials:
            self._trials.append(trials)

    def of(self, choice: Choice) -> Trial | None:
        """Mean trial of a choice; None if the window is not full, or an update in it has no trial of this choice."""
        trials = [of_update[choice] for of_update in self._trials if choice in of_update]
        if len(trials) < (self._trials.maxlen or 0):
            return None
        return Trial(*(fmean(values) for values in zip(*trials, strict=True)))

    def best(self) -> Choice | None:
        """The choice with the smallest share, of equal ones that with the fewest iterations; None without means."""
        newest: Mapping[Choice, Trial] = self._trials[-1] if self._trials else {}
        means = {choice: mean for choice in newest if (mean := self.of(choice)) is not None}
        return min(means, key=lambda choice: (means[choice].share, choice), default=None)

    def state_dict(self) -> list[list[list[float]]]:
        return [as_rows(trials) for trials in self._trials]

    def load_state_dict(self, state: Iterable[Iterable[Sequence[Any]]]) -> None:
        self._trials.clear()
        self._trials.extend(from_rows(rows) for rows in state)


def as_rows(trials: Mapping[Choice, Trial]) -> list[list[float]]:
    """The trials as plain lists of numbers."""
    return [[*choice, *trial] for choice, trial in trials.items()]


def from_rows(rows: Iterable[Sequence[Any]]) -> dict[Choice, Trial]:
    """The inverse of `as_rows`."""
    return {Choice(*row[:3]): Trial(*row[3:]) for row in rows}


def nearest(kept: Mapping[int, Any], iterations: int) -> int:
    """The last kept checkpoint that is not after so many iterations; else the first one."""
    return max((checkpoint for checkpoint in kept if checkpoint <= iterations), default=min(kept))
