"""The bound on the memory of a process: real figures of this one, and decisions by hand."""

import ctypes
import os
import subprocess
import sys

import pytest

from unstale.net.memory import PAUSE_S, MemoryBound, bytes_max_by_default, resident_bytes, return_free

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory is used")


@on_linux
def test_memory_use_grows_with_allocations() -> None:
    before = resident_bytes()
    taken = bytearray(os.urandom(1)) * 64_000_000
    assert resident_bytes() > before + 60_000_000
    del taken


@on_linux
def test_small_pieces_that_are_free_are_returned() -> None:
    library = ctypes.CDLL(None)
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    pieces = [library.malloc(16_000) for _ in range(5_000)]
    for piece in pieces:
        ctypes.memset(piece, 1, 16_000)
    for piece in pieces[:-1]:  # the last one keeps the end of the heap
        library.free(piece)
    return_free()
    before = resident_bytes()
    library.free(pieces[-1])
    assert before - resident_bytes() < 20_000_000, "what was free before was returned before"


def test_by_default_it_is_below_all_memory() -> None:
    assert 2**28 < bytes_max_by_default() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_free_memory_does_not_count() -> None:
    figures = [80, 80, 120, 90, 120, 110]
    shrunk: list[int] = []
    bound = MemoryBound(100, used=lambda: figures.pop(0), shrink=lambda: shrunk.append(len(figures)))
    assert not bound.is_exceeded(0.0, has_freed=True)
    assert not bound.is_exceeded(0.1, has_freed=True)
    assert not bound.is_exceeded(0.2, has_freed=True)  # 120, and 90 after free memory was returned
    assert bound.is_exceeded(0.3, has_freed=True)  # 120, and 110
    assert shrunk == [3, 1]


def test_what_is_free_is_returned_now_and_then_only_unless_something_was_freed() -> None:
    shrunk: list[float] = []
    now = 0.0
    bound = MemoryBound(100, used=lambda: 200, shrink=lambda: shrunk.append(now))
    for now, has_freed in ((0.0, False), (0.1, False), (0.2, True), (0.3, False), (0.2 + PAUSE_S, False)):
        assert bound.is_exceeded(now, has_freed=has_freed)
    assert shrunk == [0.0, 0.2, 0.45]


CHILD = """
import os
from unstale.net.memory import resident_bytes_with_parent
before = resident_bytes_with_parent(1)
own = bytearray(os.urandom(1)) * 64_000_000
print(before, resident_bytes_with_parent(1), resident_bytes_with_parent(2))
"""


@on_linux
def test_a_gateway_counts_its_server_once_and_each_gateway_with_its_own_memory() -> None:
    printed = subprocess.run([sys.executable, "-c", CHILD], check=True, capture_output=True, text=True).stdout
    before, one, two = map(int, printed.split())
    assert before > resident_bytes() // 2, "it counts the server"
    assert 60_000_000 < one - before < 80_000_000
    assert two - one > 60_000_000
