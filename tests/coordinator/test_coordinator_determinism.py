"""The same events give the same actions, whatever the order in which sets are iterated."""

import os
import subprocess
import sys
from pathlib import Path


def test_the_whole_trace_is_the_same_under_three_hash_seeds():
    program = Path(__file__).parents[1] / "support" / "random_runs.py"
    running = [
        subprocess.Popen(
            [sys.executable, program], env=os.environ | {"PYTHONHASHSEED": hash_seed}, stdout=subprocess.PIPE, text=True
        )
        for hash_seed in ("0", "1", "2")
    ]
    digests = [process.communicate()[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(digests[0]) == 64
    assert digests == [digests[0]] * 3
