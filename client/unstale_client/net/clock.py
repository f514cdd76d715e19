"""The clock of all processes. All other modules take the time as an argument."""

from time import monotonic

now_s = monotonic
"""Seconds since an arbitrary start. Not wrapped, because it is called several times per message."""


class RunClock:
    """Seconds of a run, which continue after a restart of the server. from_s: time of the run at that restart."""

    def __init__(self, from_s: float = 0.0) -> None:
        self._ahead_s = from_s - now_s()

    def __call__(self) -> float:
        return now_s() + self._ahead_s
