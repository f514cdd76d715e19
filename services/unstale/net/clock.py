"""The one clock. Everything else is told what time it is."""

import time


def now_s() -> float:
    """Seconds since an arbitrary start, never going back."""
    return time.monotonic()
