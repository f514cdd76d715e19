"""How far to invert, how much of the rest to add, and how far to trust it: learned from what later updates tell.

An update holds noise of its own (dropout, the draw of mini-batches), which a reconstruction that goes on too long
explains as well, and then carries to the current model. How long is too long depends on model and clients; so the
errors decide.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

FIRST_LOSS_CHECKPOINT = 5
RESIDUALS = (0.0, 0.5, 1.0)
TRUSTS = (0.25, 0.5, 0.75, 1.0)


class Choice(NamedTuple):
    """iterations: after which a reconstruction is used. residual: share of what it leaves unexplained that is added.
    trust: what part of the result that is, the rest being the update as it came."""

    iterations: int
    residual: float
    trust: float


def loss_checkpoints(iterations: int) -> tuple[int, ...]:
    """Where an inversion of so many iterations is looked at: after 5, 10, 20, ... of them, and at its end."""
    found = []
    mark = FIRST_LOSS_CHECKPOINT
    while mark < iterations:
        found.append(mark)
        mark *= 2
    return (*found, iterations)


def next_loss_checkpoint(iterations: int) -> int:
    """The mark behind one."""
    return 2 * iterations


class Trial(NamedTuple):
    """How an estimate did, and the stale update itself beside it: errors by L1 and by cosine."""

    l1: float
    cosine: float
    stale_l1: float
    stale_cosine: float

    @property
    def share(self) -> float:
        """The error of the estimate over that of the stale update, which is not 0."""
        return self.l1 / self.stale_l1


class Trials:
    """How the choices did at the last `window` updates that told about some."""

    def __init__(self, window: int) -> None:
        self._told: deque[Mapping[Choice, Trial]] = deque(maxlen=window)

    def add(self, tried: Mapping[Choice, Trial]) -> None:
        """What one more update told."""
        if tried:
            self._told.append(tried)

    def of(self, choice: Choice) -> Trial | None:
        """How one did, in the mean; None where one of these updates, or one that is missing yet, told nothing of it."""
        found = [tried[choice] for tried in self._told if choice in tried]
        if len(found) < (self._told.maxlen or 0):
            return None
        return Trial(*(fmean(values) for values in zip(*found, strict=True)))

    def best(self) -> Choice | None:
        """The one with the smallest error, as a share of the stale updates', and of equal ones that with the fewest
        iterations; None while there is none that all those updates told of."""
        newest: Mapping[Choice, Trial] = self._told[-1] if self._told else {}
        means = {choice: mean for choice in newest if (mean := self.of(choice)) is not None}
        return min(means, key=lambda choice: (means[choice].share, choice), default=None)

    def state_dict(self) -> list[list[list[float]]]:
        return [as_rows(tried) for tried in self._told]

    def load_state_dict(self, state: Iterable[Iterable[Sequence[Any]]]) -> None:
        self._told.clear()
        self._told.extend(from_rows(rows) for rows in state)


def as_rows(tried: Mapping[Choice, Trial]) -> list[list[float]]:
    """As plain lists of numbers."""
    return [[*choice, *trial] for choice, trial in tried.items()]


def from_rows(rows: Iterable[Sequence[Any]]) -> dict[Choice, Trial]:
    """What they were made of."""
    return {Choice(*row[:3]): Trial(*row[3:]) for row in rows}


def nearest(kept: Mapping[int, Any], iterations: int) -> int:
    """The last of the marks that are kept and not behind so many iterations; else the first."""
    return max((mark for mark in kept if mark <= iterations), default=min(kept))
