"""The one clock. Everything else is told what time it is."""

from time import monotonic

now_s = monotonic
"""Seconds since an arbitrary start, never going back. The very function: it is asked several times for each message."""


class RunClock:
    """Seconds of a run, which go on from where they stood when its last server died. from_s: where that was."""

    def __init__(self, from_s: float = 0.0) -> None:
        self._ahead_s = from_s - now_s()

    def __call__(self) -> float:
        return now_s() + self._ahead_s
