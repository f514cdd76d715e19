"""Time from `unstale server` and `unstale client` to the first round, beside `python -c "import torch"`.

Both processes start together and share the machine, as in a first run: 20 clients in one process, the default run,
K-async with K = 5. Each start is a process of its own; the files are in the system's cache after the first.

    python -m benchmarks.first_round [--quick]
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import IO, Any

from benchmarks import report

CLIENTS = 20
REPEATS = 5
REPEATS_QUICK = 1


def run(quick: bool = False) -> dict[str, list[float]]:
    """Seconds of every repetition: of imports, and from the start to each step of the run."""
    repeats = REPEATS_QUICK if quick else REPEATS
    _import_s("unstale.server.service")  # fills the system's cache of files
    figures: dict[str, list[float]] = {}
    for _ in range(repeats):
        steps = {"torch": _import_s("torch"), "server": _import_s("unstale.server.service"), **_first_round()}
        for step, seconds in steps.items():
            figures.setdefault(step, []).append(seconds)
    return figures


def _import_s(module: str) -> float:
    started_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - started_s


def _first_round() -> dict[str, float]:
    """Seconds from the start of both processes until each of the server's events."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"  # released at once: the client must know it beforehand
    run = ("--clients", str(CLIENTS), "--evaluate-every", "1", "--rounds", "1000000")
    with ExitStack() as stack:
        started_s = time.perf_counter()
        server = _start(
            stack, "server", *run, "--server.address", address, "--server.http-address", "127.0.0.1:0", "--json"
        )
        _start(stack, "client", "--server", address, "--count", str(CLIENTS))
        assert server.stdout is not None
        return {
            "listening": _said_s(server.stdout, started_s, event="listening"),
            "joined": _said_s(server.stdout, started_s, version=0),
            "first round": _said_s(server.stdout, started_s, version=1),
        }


def _start(stack: ExitStack, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "unstale", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    stack.callback(process.communicate)
    stack.callback(process.terminate)
    return process


def _said_s(lines: IO[str], started_s: float, **expected: Any) -> float:
    """Time until the server prints a JSON line with these fields."""
    for line in lines:
        fields = json.loads(line)
        if all(fields.get(field) == value for field, value in expected.items()):
            return time.perf_counter() - started_s
    raise AssertionError(f"the server ended before it printed {expected}")


def markdown(figures: dict[str, list[float]]) -> str:
    """The figures as a table."""
    torch_s = statistics.median(figures["torch"])
    names = {
        "torch": '`python -c "import torch"`, alone',
        "server": "`import unstale.server.service`, alone",
        "listening": "start to listening: imports, data, model, socket",
        "joined": f"start to all {CLIENTS} clients joined and version 0 measured",
        "first round": "start to the first round applied and measured",
    }
    rows = [
        (name, report.median_and_spread(figures[step]), f"{statistics.median(figures[step]) / torch_s:.2f}")
        for step, name in names.items()
    ]
    return (
        f"Server and client processes start at one moment; {len(figures['torch'])} repetitions, median and spread.\n\n"
        + report.table(("what", "seconds", "over import torch"), rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    print(markdown(run(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
