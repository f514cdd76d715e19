"""Free memory is returned to the system. In a process of its own, because the settings stay."""

import platform
import subprocess
import sys

import pytest

KEPT = """
import ctypes
from unstale.server.malloc import LARGE_BYTES, limit_retained_memory

def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as statm:
        return 4096 * int(statm.read().split()[1])

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
if {bounded}:
    limit_retained_memory()
before = resident_bytes()
for _ in range(2):  # glibc learns from the first
    block = library.malloc(2 * LARGE_BYTES)
    ctypes.memset(block, 1, 2 * LARGE_BYTES)
    library.free(block)
print(resident_bytes() - before)
"""


def kept_bytes(*, bounded: bool) -> int:
    script = KEPT.format(bounded=bounded)
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps other blocks")
def test_a_large_free_block_is_returned_to_the_system() -> None:
    assert kept_bytes(bounded=False) > 4 * 1024**2
    assert kept_bytes(bounded=True) < 1024**2
