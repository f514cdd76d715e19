"""The memory of this process against a bound, on Linux."""

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SHARE_OF_ALL = 0.8  # of the machine's or the container's memory, where no bound is given
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
PAUSE_S = 0.25  # between two times that free memory is returned, which takes milliseconds


def resident_bytes() -> int:
    """Memory of this process that the system holds for it; 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def bytes_max_by_default() -> int:
    """80 % of the memory that this process may use: the machine's, or less in a container with a limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else []
    for path in CGROUP_LIMITS:
        text = path.read_text().strip() if path.exists() else ""
        if text.isdecimal():
            limits.append(int(text))
    return int(SHARE_OF_ALL * min(limits)) if limits else sys.maxsize


def return_free() -> None:
    """Return free memory of the C library to the system, where it is glibc."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found


@dataclass(slots=True)
class MemoryBound:
    """A bound on the memory of this process.

    Attributes:
        bytes_max: the bound.
        used: bytes that the process has in memory.
        shrink: returns free memory to the system.
    """

    bytes_max: int
    used: Callable[[], int] = resident_bytes
    shrink: Callable[[], None] = return_free
    _shrunk_s: float = field(default=-PAUSE_S, init=False)

    def is_exceeded(self, at_s: float, *, has_freed: bool) -> bool:
        """Whether the process uses more than the bound, free memory not counted.

        Args:
            at_s: now, in seconds.
            has_freed: memory was freed since the last call. Otherwise what is free is returned now and then only.
        """
        if self.used() <= self.bytes_max:
            return False
        if has_freed or at_s >= self._shrunk_s + PAUSE_S:
            self._shrunk_s = at_s
            self.shrink()
        return self.used() > self.bytes_max
