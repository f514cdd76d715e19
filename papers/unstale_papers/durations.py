"""Durations of jobs, estimated from similar ones. Pure."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

_WHICH_ONE = frozenset({"seed", "data.name", "data.path", "data.variant.name", "data.variant.path"})
"""Keys in which two jobs of one size may differ."""

_SIZE = frozenset(
    {
        *("rounds", "clients", "device", "model.name", "compensator.name", "trigger.k", "selector.size"),
        *("training.steps", "training.epochs", "training.batch_size"),
    }
)
"""Keys that determine most of a job's size for any method."""


class Durations:
    """Durations of jobs by size: equal except seed and data; without such a job, also except the method."""

    def __init__(self, known: Iterable[tuple[str, float]] = ()) -> None:
        """known: configuration and seconds of jobs that are done."""
        self._seconds: dict[str, list[float]] = defaultdict(list)
        for configuration, seconds in known:
            self.add(configuration, seconds)

    def add(self, configuration: str, seconds: float) -> None:
        """Record the duration of a job."""
        for size in _sizes(configuration):
            self._seconds[size].append(seconds)

    def of(self, configuration: str) -> float | None:
        """Mean seconds of similar jobs; None without a completed one."""
        for size in _sizes(configuration):
            seconds = self._seconds.get(size)
            if seconds:
                return sum(seconds) / len(seconds)
        return None


@lru_cache(maxsize=10_000)  # every estimate of the time left asks for each
def _sizes(configuration: str) -> tuple[str, str]:
    """The exact size and the approximate one."""
    parsed: dict[str, Any] = json.loads(configuration)
    settings: dict[str, Any] = parsed["settings"]
    exact = {key: value for key, value in settings.items() if key not in _WHICH_ONE}
    rough = {key: value for key, value in settings.items() if key in _SIZE}
    work = {"measurement": parsed["measurement"], "options": parsed["options"]}
    return (
        json.dumps({**work, "scenario": parsed["scenario"], "settings": exact}, sort_keys=True),
        json.dumps({**work, "settings": rough, "is": "rough"}, sort_keys=True),
    )


def left_s(
    running: Sequence[tuple[float, float | None]], waiting: Sequence[float | None], at_a_time: int
) -> float | None:
    """Seconds until all jobs are done with so many at a time.

    running: elapsed and total seconds of each. waiting: total seconds of each. An unknown (None) total counts as the
    mean of the others; None when all are unknown.
    """
    if not running and not waiting:
        return 0.0
    known = [in_all for in_all in (*(in_all for _, in_all in running), *waiting) if in_all is not None]
    if not known:
        return None
    mean = sum(known) / len(known)
    still = [max(0.0, (mean if in_all is None else in_all) - spent) for spent, in_all in running]
    still += [mean if in_all is None else in_all for in_all in waiting]
    return max(sum(still) / at_a_time, *still)
