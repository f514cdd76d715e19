"""How long jobs take, from what others alike took. Pure."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

_WHICH_ONE = frozenset({"seed", "data.name", "data.path", "data.variant.name", "data.variant.path"})
"""Keys that two jobs of one size may differ in."""

_SIZE = frozenset(
    {
        *("rounds", "clients", "device", "model.name", "compensator.name", "trigger.k", "selector.size"),
        *("training.steps", "training.epochs", "training.batch_size"),
    }
)
"""Keys that make most of a job's size, whatever its method."""


class Durations:
    """What jobs took, by their size: alike but for seed and data; and where there is none such, also for the method."""

    def __init__(self, known: Iterable[tuple[str, float]] = ()) -> None:
        """known: configuration and seconds of jobs that are done."""
        self._seconds: dict[str, list[float]] = defaultdict(list)
        for configuration, seconds in known:
            self.add(configuration, seconds)

    def add(self, configuration: str, seconds: float) -> None:
        """Another one is done."""
        for size in _sizes(configuration):
            self._seconds[size].append(seconds)

    def of(self, configuration: str) -> float | None:
        """Seconds that such a job takes on average; None when none like it is done."""
        for size in _sizes(configuration):
            seconds = self._seconds.get(size)
            if seconds:
                return sum(seconds) / len(seconds)
        return None


@lru_cache(maxsize=10_000)  # each is asked for whenever somebody wants to know the time that is left
def _sizes(configuration: str) -> tuple[str, str]:
    """The exact one and the rough one."""
    said: dict[str, Any] = json.loads(configuration)
    settings: dict[str, Any] = said["settings"]
    exact = {key: value for key, value in settings.items() if key not in _WHICH_ONE}
    rough = {key: value for key, value in settings.items() if key in _SIZE}
    work = {"measurement": said["measurement"], "options": said["options"]}
    return (
        json.dumps({**work, "scenario": said["scenario"], "settings": exact}, sort_keys=True),
        json.dumps({**work, "settings": rough, "is": "rough"}, sort_keys=True),
    )


def left_s(
    running: Sequence[tuple[float, float | None]], waiting: Sequence[float | None], at_a_time: int
) -> float | None:
    """Seconds until all jobs are done, of which so many run at a time.

    running: seconds that each has taken, and takes in all. waiting: seconds that each takes. Where that is None it
    counts as the mean of the others; None when it is so for all of them.
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
