"""A bound on the memory of this process, on Linux."""

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SHARE_OF_ALL = 0.8  # default bound, of the machine's or the container's memory
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
PAUSE_S = 0.25  # between two calls of malloc_trim, which take milliseconds


def resident_bytes() -> int:
    """Resident memory of this process; 0 where it is unknown."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def bytes_max_by_default() -> int:
    """80 % of the memory of the machine, or of a container with a lower limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else []
    for path in CGROUP_LIMITS:
        text = path.read_text().strip() if path.exists() else ""
        if text.isdecimal():
            limits.append(int(text))
    return int(SHARE_OF_ALL * min(limits)) if limits else sys.maxsize


def return_free() -> None:
    """Return free memory of glibc to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)


@dataclass(slots=True)
class MemoryBound:
    """A bound of `bytes_max`. used: returns the memory in use. shrink: returns free memory to the system."""

    bytes_max: int
    used: Callable[[], int] = resident_bytes
    shrink: Callable[[], None] = return_free
    _shrunk_s: float = field(default=-PAUSE_S, init=False)

    def is_exceeded(self, at_s: float, *, has_freed: bool) -> bool:
        """Whether the memory in use, without free memory, exceeds the bound.

        has_freed: memory was freed since the last call. Otherwise free memory is returned at intervals only.
        """
        if self.used() <= self.bytes_max:
            return False
        if has_freed or at_s >= self._shrunk_s + PAUSE_S:
            self._shrunk_s = at_s
            self.shrink()
        return self.used() > self.bytes_max
