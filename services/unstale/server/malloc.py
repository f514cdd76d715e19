"""What the C library keeps of the memory that it was given back."""

import ctypes
import sys

LARGE_BYTES = 4 * 1024**2  # a chunk; payloads in one message are shorter, and too frequent to be mapped
KEPT_BYTES = 2 * LARGE_BYTES  # by each of the library's arenas, of which every thread may have one
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def limit_retained_memory() -> None:
    """Give large blocks back to the system as soon as they are free, in this process.

    glibc raises its own bounds to the largest block that was ever freed, up to 32 MiB, and keeps as much in each arena:
    with a model of 45 MB, three models in all. Does nothing with another C library.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
