"""`python -m benchmarks`: run benchmarks one after the other, and store their results.

Each runs as `python -m benchmarks.NAME` in a process of its own, without the memory and threads of others.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import machine

RESULTS = Path(__file__).parent / "results"

MARKDOWN = {
    "ingest": "Updates a second through the server",
    "injector": "Updates a second through the injector",
    "large_transfer": "A model of 760 MB over a link that breaks",
    "gigabytes": "Rounds of a large model over links that break",
    "gigabyte_steps": "What each step of a large update costs",
    "first_round": "From start to the first round",
    "simulation": "Simulator against a bare loop",
    "app_overhead": "Simulation of an app against its training in a bare loop",
    "simulation_preset": "A published cell against a bare loop",
    "simulation_scale": "A hundred thousand simulated clients",
    "first_convolution": "Images with their channels last",
    "aggregation": "Aggregation against one read of the matrix",
    "encodings": "What encodings cost and save",
    "replay": "Recorded runs, computed again",
    "server_memory": "Memory of the server over the number of clients",
    "client_footprint": "Size and import time of unstale-client",
    "client_scale": "A client process over the number of clients that it hosts",
    "gateways": "Updates a second through a gateway process",
    "ten_thousand": "Ten thousand connected clients",
    "growth": "Growth of costs",
    "ray_workers": "Clients on a Ray cluster of this machine",
    "flower_stragglers": "Time to an accuracy beside Flower, with stragglers",
}
TEXT = {"coordinator_events": "Coordinator events a second"}
TITLES = MARKDOWN | TEXT


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run benchmarks, one after the other.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which; default: all of {', '.join(TITLES)}")
    parser.add_argument("--quick", action="store_true", help="a rough look in under a minute, not written down")
    parser.add_argument("--no-write", action="store_true", help="print only, write nothing to benchmarks/results/")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in TITLES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}, expected one of {', '.join(TITLES)}")
    for name in arguments.names or TITLES:
        found = _report(name, arguments.quick)
        print(f"{found}\n", flush=True)
        if not (arguments.quick or arguments.no_write):
            RESULTS.mkdir(exist_ok=True)
            path = RESULTS / f"{name}_{machine.hardware()}_{machine.month()}.md"
            path.write_text(f"{found}\n", encoding="utf-8")
            print(f"written to {path.relative_to(Path.cwd())}\n", flush=True)


def _report(name: str, quick: bool) -> str:
    """Run one benchmark and return its results as Markdown, headed by the machine."""
    arguments = ["-m", f"benchmarks.{name}", *(["--quick"] if quick else [])]
    head = machine.description(" ".join(["python", *arguments]))
    started_s = time.perf_counter()
    found = subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    took_s = time.perf_counter() - started_s
    body = found if name in MARKDOWN else f"```text\n{found}\n```"
    return f"# {TITLES[name]}\n\n{head}\n- took: {took_s:.0f} s\n\n{body}"


if __name__ == "__main__":
    main()
