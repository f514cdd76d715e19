"""Limits of the work for inversions: iterations and seconds, per round and for the whole run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

from unstale.compensators.inversion.settings import InversionSettings
from unstale.errors import UserError


class Budget:
    """Counts iterations and seconds of the run, and the time since the current round closed.

    Attributes:
        iterations, seconds: of the run so far.
    """

    def __init__(self, settings: InversionSettings, clock: Callable[[], float] | None) -> None:
        """clock: monotonic seconds; None where time is virtual. Raises UserError for seconds without a clock."""
        for key in ("seconds_per_round", "seconds_total"):
            if clock is None and getattr(settings, key) is not None:
                raise UserError(
                    f"compensator.settings.{key} is {getattr(settings, key):g}, but a simulation has no seconds to "
                    f"count, expected null; set {key.replace('seconds', 'iterations')} to bound the work"
                )
        self._settings = settings
        self._clock = clock or (lambda: 0.0)
        self.iterations = 0
        self.seconds = 0.0
        self._closed_s = -inf

    def close_round(self) -> None:
        """A round is closed and waits from now on."""
        self._closed_s = self._clock()

    @property
    def left_s(self) -> float | None:
        """How much longer the closed round may wait; None without a limit."""
        longest_s = self._settings.seconds_per_round
        return None if longest_s is None else max(0.0, longest_s - (self._clock() - self._closed_s))

    @property
    def is_out_of_time(self) -> bool:
        """Whether the time of the closed round is over."""
        return self.left_s == 0

    @property
    def is_spent(self) -> bool:
        """Whether the run has used a total limit."""
        settings = self._settings
        return (settings.iterations_total is not None and self.iterations >= settings.iterations_total) or (
            settings.seconds_total is not None and self.seconds >= settings.seconds_total
        )

    def room(self, in_round: int, planned: int = 0) -> float:
        """How many more iterations are allowed; infinite without a limit.

        Args:
            in_round: iterations of the round, done and planned.
            planned: those of them that `iterations` does not count yet.
        """
        if self.is_spent:
            return 0
        limits = (
            (self._settings.iterations_per_round, in_round),
            (self._settings.iterations_total, self.iterations + planned),
        )
        return max(0, min(inf if limit is None else limit - used for limit, used in limits))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the duration of the block to `seconds`."""
        started_s = self._clock()
        try:
            yield
        finally:
            self.seconds += self._clock() - started_s
