"""When the first round of a published cell is applied that `unstale reproduce run` plays, told by the command itself.

    python -m benchmarks.preset_start FILE.npz [DEVICE]

Prints `time.perf_counter` at that moment and ends there; one clock serves all processes of a machine. Of a hundred
rounds the command is told each. It imports nothing that the command does not.
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
"""Of fh-t1, by its labels."""

ROUNDS = 100  # of each the command is told
SCALE = ROUNDS / 5000  # as many as the cell has in print


class Enough(Exception):  # noqa: N818  (nothing went wrong)
    """What is timed is over."""


def first_round_s(data: Path, device: str = "cpu") -> float:
    """When it is applied, by `time.perf_counter`. data: in the place of CIFAR-10."""
    marks: list[float] = []

    def on_share(*_: Any) -> None:
        marks.append(time.perf_counter())
        raise Enough

    cell = " ".join(f"{name}={label}" for name, label in CELL.items())
    options = ("--cells", cell, "--seeds", "1", "--scale-rounds", str(SCALE), "--device", device)
    with (
        tempfile.TemporaryDirectory(prefix="unstale-bench-") as store,
        patch.object(Engine, "_on_share", on_share),
        redirect_stdout(sys.stderr),
        suppress(Enough),
    ):
        command.run(["reproduce", "run", "fh-t1", *options, "--data", f"cifar10={data}", "--store", store])
    return marks[0]


if __name__ == "__main__":
    print(first_round_s(Path(sys.argv[1]), *sys.argv[2:]))
