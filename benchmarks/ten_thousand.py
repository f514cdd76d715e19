"""A server with ten thousand real connections on this machine, to the end of a run.

A server process runs `k-async` with K = 100 and a model of 170 parameters; client processes of thousands answer each
task at once with an update of zeros. Nothing is trained, so the rate is that of server, sockets and clients on the
machine's cores. Once a second the status page is read: when all have joined, the rounds, the clients that were lost,
and the memory of the server with its gateways.

    python -m benchmarks.ten_thousand [--clients 10000] [--processes 2] [--rounds 1000] [--gateways 1] [--keep-s 600]
"""

import argparse
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any, NamedTuple
from urllib.request import urlopen

import psutil

from benchmarks import report
from benchmarks.client_scale import InstantWorker
from unstale_client.loop import ClientLoop

POLL_S = 1.0


# --- the processes of the clients ---


def host(address: str, first: int, clients: int) -> None:
    """Host clients until the run is over."""
    ClientLoop(
        server=address, client_ids=range(first, first + clients), worker=InstantWorker, heartbeat_s=2.0, linger_s=1.0
    ).run()


# --- the measurement ---


class Look(NamedTuple):
    """At the run, so many seconds after its clients were started."""

    at_s: float
    version: int
    active: int
    lost: int
    accepted: int
    memory_bytes: int


def serve(
    stack: ExitStack, clients: int, rounds: int, gateways: int, durability: str = "normal"
) -> tuple["subprocess.Popen[str]", dict[str, str]]:
    """A server's process, which ends with the stack, and its addresses."""
    of_server = ("--clients", clients, "--rounds", rounds, "--gateways", gateways, "--durability", durability)
    server = _process(stack, "benchmarks.ten_thousand_server", *of_server)
    assert server.stdout is not None
    return server, json.loads(server.stdout.readline())


def hosts(stack: ExitStack, address: str, clients: int, processes: int) -> list["subprocess.Popen[str]"]:
    """Processes that host these clients together, and end with the stack."""
    each = -(-clients // processes)
    return [
        _process(
            stack,
            *("benchmarks.ten_thousand", "host", "--address", address),
            *("--first", first, "--clients", min(each, clients - first)),
        )
        for first in range(0, clients, each)
    ]


def measure(clients: int, processes: int, rounds: int, gateways: int, durability: str, keep_s: float) -> dict[str, Any]:
    """One run. keep_s: after which it is ended."""
    with ExitStack() as stack:
        server, addresses = serve(stack, clients, rounds, gateways, durability)
        assert server.stdout is not None
        began_s = time.monotonic()
        hosts(stack, addresses["address"], clients, processes)
        looks: list[Look] = []
        while server.poll() is None and time.monotonic() < began_s + keep_s:
            time.sleep(POLL_S)
            looks.append(look(addresses["http"], server.pid, time.monotonic() - began_s) or looks[-1])
            print(looks[-1], file=sys.stderr, flush=True)
        ended_s = time.monotonic() - began_s
        line = server.stdout.readline() if server.poll() is not None else ""
        return {"looks": looks, "outcome": json.loads(line) if line else None, "seconds": ended_s, "rc": server.poll()}


def look(http: str, pid: int, at_s: float) -> Look | None:
    """A look at the run now; None if the server has ended, or does not answer."""
    try:
        with urlopen(f"http://{http}/status.json", timeout=10) as answer:
            status = json.loads(answer.read())
        process = psutil.Process(pid)
        memory = sum(one.memory_full_info().pss for one in (process, *process.children()))  # shared memory once
    except (OSError, psutil.Error):
        return None
    states = status["clients"]
    active = sum(states.get(state, 0) for state in ("waiting", "working", "contributed", "unavailable"))
    return Look(
        at_s, status["state"]["version"], active, states.get("lost", 0), status["updates"].get("accepted", 0), memory
    )


def _process(stack: ExitStack, module: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", module, *map(str, arguments)]
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(process.terminate)
    return process


def markdown(figures: dict[str, Any], clients: int) -> str:
    """The figures as a table."""
    looks: list[Look] = figures["looks"]
    joined_s = next((one.at_s for one in looks if one.active == clients), None)
    last = looks[-1]
    rate = last.accepted / last.at_s
    ended = f"{figures['seconds']:.0f} s"
    rows = [
        ["all have joined after", "-" if joined_s is None else f"{joined_s:.0f} s"],
        ["end of the run after", ended if figures["outcome"] else f"not in {ended}"],
        ["rounds", f"{figures['outcome']['versions'] if figures['outcome'] else last.version:,}"],
        ["updates accepted a second, over the whole run", f"{rate:,.0f}"],
        ["most clients lost at a time", f"{max(one.lost for one in looks):,}"],
        ["most memory of the server and its gateways", report.megabytes(max(one.memory_bytes for one in looks))],
    ]
    return report.table(["", f"{clients:,} clients"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", nargs="?", choices=["host"])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--durability", default="normal")
    parser.add_argument("--keep-s", type=float, default=600.0)
    parser.add_argument("--address")
    parser.add_argument("--first", type=int)
    parser.add_argument("--quick", action="store_true", help="300 clients, 30 rounds")
    given = parser.parse_args()
    if given.quick:
        given.clients, given.rounds = 300, 30
    if given.part == "host":
        host(given.address, given.first, given.clients)
    else:
        figures = measure(given.clients, given.processes, given.rounds, given.gateways, given.durability, given.keep_s)
        print(markdown(figures, given.clients))


if __name__ == "__main__":
    main()
