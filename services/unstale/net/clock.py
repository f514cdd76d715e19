"""The one clock. Everything else is told what time it is."""

import time


def now_s() -> float:
    """Seconds since an arbitrary start, never going back."""
    return time.monotonic()


class RunClock:
    """Seconds of a run, which go on from where they stood when its last server died. from_s: where that was."""

    def __init__(self, from_s: float = 0.0) -> None:
        self._ahead_s = from_s - now_s()

    def __call__(self) -> float:
        return now_s() + self._ahead_s
