"""Time until `unstale --help` has printed, and until the first round of a run, beside `python -c "import torch"`.

Each start is a process of its own; the files are in the system's cache after the first.

- `unstale server` and `unstale client` start at one moment and share the machine: 20 clients in one process, the
  default run, K-async with K = 5.
- `unstale demo`: the default run of 20 clients through the injector with the scenario `lte`, measured after each round.
- `unstale reproduce run`: a cell of fh-t1 of CIFAR-10's size, as in `benchmarks.preset_start`; with noise as images.

    python -m benchmarks.first_round [--quick]
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from benchmarks import report
from benchmarks.noise import write_noise

CLIENTS = 20
REPEATS = 5
REPEATS_QUICK = 1
RUN = ("--clients", str(CLIENTS), "--evaluate-every", "1", "--rounds", "1000000")

STEPS = {
    "torch": ('`python -c "import torch"`, alone', None),
    "server": ("`import unstale.server.service`, alone", None),
    "help": ("`unstale --help`", 0.4),
    "listening": ("`unstale server` and `client`: start to listening", None),
    "joined": (f"start to all {CLIENTS} clients joined and version 0 measured", None),
    "first round": ("start to the first round applied and measured", 3.0),
    "demo": ("`unstale demo`: start to the first round measured", 3.0),
    "reproduce": ("`unstale reproduce run`: start to the first round applied", 3.0),
}
"""Of each step: its name, and the goal in seconds."""
ALONE = ("torch", "server", "help")
"""Steps that are one process to its end, whose CPU time is reported, too."""


def run(repeats: int = REPEATS) -> dict[str, list[float]]:
    """Seconds of every repetition, by step; CPU time of `ALONE` by `cpu of STEP`."""
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="unstale-bench-") as folder:
        data = Path(folder) / "noise.npz"
        write_noise(data)
        _alone("server", "-c", "import unstale.server.service")  # fills the system's cache of files
        for _ in range(repeats):
            steps = {
                **_alone("torch", "-c", "import torch"),
                **_alone("server", "-c", "import unstale.server.service"),
                **_alone("help", "-m", "unstale", "--help"),
                **_first_round(),
                "demo": _demo_s(),
                "reproduce": _reproduce_s(data),
            }
            for step, seconds in steps.items():
                figures.setdefault(step, []).append(seconds)
    return figures


def _alone(step: str, *arguments: str) -> dict[str, float]:
    """Seconds and CPU seconds of a process."""
    began, began_s = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    ended, took_s = os.times(), time.perf_counter() - began_s
    cpu_s = ended.children_user + ended.children_system - began.children_user - began.children_system
    return {step: took_s, f"cpu of {step}": cpu_s}


def _demo_s() -> float:
    with ExitStack() as stack:
        started_s = time.perf_counter()
        demo = _start(stack, "demo", *RUN)
        assert demo.stdout is not None
        return _printed_s(demo.stdout, started_s, lambda line: line.split()[:1] == ["1/1000000"])


def _reproduce_s(data: Path) -> float:
    started_s = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.preset_start", str(data)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return float(printed) - started_s  # one clock for all processes of a machine


def _first_round() -> dict[str, float]:
    """Seconds from the start of both processes until each of the server's events."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"  # released at once: the client must know it beforehand
    with ExitStack() as stack:
        started_s = time.perf_counter()
        server = _start(
            stack, "server", *RUN, "--server.address", address, "--server.http-address", "127.0.0.1:0", "--json"
        )
        _start(stack, "client", "--server", address, "--count", str(CLIENTS))
        assert server.stdout is not None
        return {
            "listening": _said_s(server.stdout, started_s, event="listening"),
            "joined": _said_s(server.stdout, started_s, version=0),
            "first round": _said_s(server.stdout, started_s, version=1),
        }


def _start(stack: ExitStack, *arguments: str) -> subprocess.Popen[str]:
    folder = stack.enter_context(tempfile.TemporaryDirectory())  # in which no run waits to be resumed
    process = subprocess.Popen(
        [sys.executable, "-m", "unstale", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    stack.callback(process.communicate)
    stack.callback(process.terminate)
    return process


def _said_s(lines: IO[str], started_s: float, **expected: Any) -> float:
    """Time until the server prints a JSON line with these fields."""

    def is_it(line: str) -> bool:
        fields = json.loads(line)
        return all(fields.get(field) == value for field, value in expected.items())

    return _printed_s(lines, started_s, is_it)


def _printed_s(lines: Iterable[str], started_s: float, is_it: Callable[[str], bool]) -> float:
    """Time until a process prints such a line."""
    for line in lines:
        if is_it(line):
            return time.perf_counter() - started_s
    raise AssertionError("a process ended before it printed the line that is waited for")


def markdown(figures: dict[str, list[float]]) -> str:
    """The figures as a table."""
    torch_s = statistics.median(figures["torch"])
    rows = []
    for step, (name, goal_s) in STEPS.items():
        goal = "" if goal_s is None else f"under {goal_s:.1f}"
        cpu = report.median_and_spread(figures[f"cpu of {step}"]) if step in ALONE else ""
        ratio = f"{statistics.median(figures[step]) / torch_s:.2f}"
        rows.append((name, report.median_and_spread(figures[step]), goal, ratio, cpu))
    return f"{len(figures['torch'])} repetitions, median and spread.\n\n" + report.table(
        ("what", "seconds", "goal", "over import torch", "CPU seconds"), rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one repetition")
    print(markdown(run(REPEATS_QUICK if parser.parse_args().quick else REPEATS)))


if __name__ == "__main__":
    main()
