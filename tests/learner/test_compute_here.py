"""A computing thread uses the process's number of BLAS threads from its first operation on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, threading, torch
from unstale.learner.device import compute_here

def tasks():
    return len(os.listdir("/proc/self/task"))

def compute():
    compute_here()
    before = tasks()
    torch.dot(vector_d, vector_d)
    print(tasks() - before)

torch.set_num_threads(1)
vector_d = torch.ones(4_000_000)
thread = threading.Thread(target=compute)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc to count threads")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core: BLAS starts no threads anyway")
def test_a_dot_product_in_a_new_thread_starts_no_threads() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
