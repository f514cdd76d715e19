"""How much inverting may cost."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

from unstale.compensators.inversion.settings import InversionSettings
from unstale.errors import UserError


class Budget:
    """Counts iterations and seconds of the run, and of the round that is being made.

    iterations, seconds: of the run so far. clock: seconds that never go back; None where time is virtual.
    """

    def __init__(self, settings: InversionSettings, clock: Callable[[], float] | None) -> None:
        """Raises UserError for seconds that nobody can count."""
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
        """A round waits from now on."""
        self._closed_s = self._clock()

    @property
    def left_s(self) -> float | None:
        """How much longer the round that waits may; None for as long as it takes."""
        longest_s = self._settings.seconds_per_round
        return None if longest_s is None else max(0.0, longest_s - (self._clock() - self._closed_s))

    @property
    def is_out_of_time(self) -> bool:
        """Whether the round that waits has waited long enough."""
        return self.left_s == 0

    @property
    def is_spent(self) -> bool:
        """Whether the run has had all that it may have."""
        settings = self._settings
        return (settings.iterations_total is not None and self.iterations >= settings.iterations_total) or (
            settings.seconds_total is not None and self.seconds >= settings.seconds_total
        )

    def room(self, in_round: int, planned: int = 0) -> float:
        """How many more iterations are allowed, infinitely many where there is no bound. in_round: how many the round
        has had or is to have. planned: those of these that `iterations` does not count yet."""
        if self.is_spent:
            return 0
        settings = self._settings
        in_run = self.iterations + planned
        return max(
            0,
            min(
                inf if settings.iterations_per_round is None else settings.iterations_per_round - in_round,
                inf if settings.iterations_total is None else settings.iterations_total - in_run,
            ),
        )

    @contextmanager
    def timed(self) -> Iterator[None]:
        """What is done meanwhile takes seconds of the run."""
        started_s = self._clock()
        try:
            yield
        finally:
            self.seconds += self._clock() - started_s
