"""Time of the first applied round of a published cell in `unstale reproduce run`, measured inside the command.

    python -m benchmarks.preset_start FILE.npz [DEVICE]

Prints `time.perf_counter` at that moment and ends; one clock serves all processes of a machine. With a hundred rounds
the command reports each. It imports nothing beyond the command's imports.
"""

import sys
import tempfile
import time
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from unstale.cli import main as command
from unstale_papers.engine import Engine

CELL = {"data": "CIFAR-10", "beta": "0.3", "N/K": "10", "method": "FedHist"}
"""Labels of a cell of fh-t1."""

ROUNDS = 100  # the command reports each
SCALE = ROUNDS / 5000  # the published number of rounds


class TimingEnded(Exception):  # noqa: N818  (not an error)
    """Raised at the end of the timed part."""


def first_round_s(data: Path, device: str = "cpu") -> float:
    """`time.perf_counter` of the first applied round. data: replaces CIFAR-10."""
    marks: list[float] = []

    def on_share(*_: Any) -> None:
        marks.append(time.perf_counter())
        raise TimingEnded

    cell = " ".join(f"{name}={label}" for name, label in CELL.items())
    options = ("--cells", cell, "--seeds", "1", "--scale-rounds", str(SCALE), "--device", device)
    with (
        tempfile.TemporaryDirectory(prefix="unstale-bench-") as store,
        patch.object(Engine, "_on_share", on_share),
        redirect_stdout(sys.stderr),
        suppress(TimingEnded),
    ):
        command.run(["reproduce", "run", "fh-t1", *options, "--data", f"cifar10={data}", "--store", store])
    return marks[0]


if __name__ == "__main__":
    print(first_round_s(Path(sys.argv[1]), *sys.argv[2:]))
