"""The example of adapters: its server, its client processes, and their log."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.examples import EXAMPLES

FOLDER = EXAMPLES / "lora"
PARAMETERS = 8192  # 2 layers, rank 4: c_attn 4 * (64 + 192), c_fc and c_proj 4 * (64 + 256), attention's c_proj 4 * 128
SERVER: tuple[str, ...] = (
    *("--app", "simulated:app", "--trigger", "async", "--policy", "fedbuff", "--evaluate-every", "1000"),
    *("--server.http-address", "null", "--json", "--device", "cpu", "--server.lease-s", "600"),
)


def client(folder: Path, address: str, number: int, program: str = "federated.py") -> "subprocess.Popen[str]":
    """A client process, whose losses are lines of its output."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, program, address, str(number)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def next_loss(process: "subprocess.Popen[str]") -> float:
    """The next loss that the trainer of a client prints."""
    assert process.stdout is not None
    for line in process.stdout:
        found: Any = re.search(r"'loss': '?([\d.]+)", line)
        if found:
            return float(found[1])
    raise AssertionError("the client has ended")
