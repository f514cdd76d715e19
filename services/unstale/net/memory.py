"""A bound on the memory of this process, on Linux."""

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_SHARE = 0.8  # of the memory of the machine or container, for the default bound
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
PAUSE_S = 0.25  # least time between calls of malloc_trim, which take milliseconds


def resident_bytes(process: int | str = "self") -> int:
    """Resident memory of a process; 0 if the system does not report it."""
    return _pages(process)[0] * os.sysconf("SC_PAGE_SIZE")


def resident_bytes_with_parent(gateways: int) -> int:
    """Resident memory of a gateway's server and of its gateways: this one is one of so many that are taken as equal.

    Memory that processes share, such as libraries and received payloads, counts for the server only.
    """
    resident, shared = _pages("self")
    return resident_bytes(os.getppid()) + gateways * (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _pages(process: int | str) -> tuple[int, int]:
    """Resident pages, and those of them that lie in files or are shared."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
    except OSError:
        return 0, 0
    return int(resident), int(shared)


def bytes_max_by_default() -> int:
    """`DEFAULT_SHARE` of the machine's memory, or of the container's lower limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else []
    for path in CGROUP_LIMITS:
        text = path.read_text().strip() if path.exists() else ""
        if text.isdecimal():
            limits.append(int(text))
    return int(DEFAULT_SHARE * min(limits)) if limits else sys.maxsize


def return_free() -> None:
    """Return memory that was freed, but that glibc keeps, to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)


@dataclass(slots=True)
class MemoryBound:
    """A bound of `bytes_max`. used: reads the resident memory. shrink: returns freed memory to the system."""

    bytes_max: int
    used: Callable[[], int] = resident_bytes
    shrink: Callable[[], None] = return_free
    _shrunk_s: float = field(default=-PAUSE_S, init=False)  # time of the last `shrink`

    def is_exceeded(self, at_s: float, *, has_freed: bool) -> bool:
        """Whether the resident memory exceeds the bound, if need be after `shrink`.

        has_freed: memory was freed since the last call, so `shrink` runs; otherwise at most once per `PAUSE_S`.
        """
        if self.used() <= self.bytes_max:
            return False
        if has_freed or at_s >= self._shrunk_s + PAUSE_S:
            self._shrunk_s = at_s
            self.shrink()
        return self.used() > self.bytes_max
