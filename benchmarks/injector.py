"""Updates a second through the injector, without toxics, beside a direct connection; goal: 0.85 from 250 KB on.

Two servers of a kind run in processes of their own, one of them behind an injector in a process of its own. 4 clients
that answer at once alternate between them in pairs of windows, so that other load affects both; the ratio is taken per
pair. One kind is the real server, which applies real rounds as in `benchmarks.ingest`; the other is the bare echo
server of that benchmark, which only transports.

The bound is the ratio where all cores are busy: processor time of an update without the injector, over that with it, of
all processes. Where clients and server leave cores idle, the ratio may be larger.

    python -m benchmarks.injector [--quick] [--tcp]
"""

import argparse
import os
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import zmq

from benchmarks import machine, report
from benchmarks.ingest import WARM_S, process
from benchmarks.ingest_clients import Clients

GOAL_RATIO = 0.85
CLIENTS, K = 4, 4
PAIRS = 7


class Size(NamedTuple):
    """One size of model. window_s: duration of each measurement."""

    name: str
    dimension: int
    window_s: float


SIZES = (Size("250 KB", 62_500, 1.0), Size("4 MB", 1_000_000, 1.0))
KINDS = {
    "unstale": (
        "benchmarks.ingest_server",
        ("--trigger", "buffered", "--k", str(K), "--durability", "off", "--folder", "unused"),
    ),
    "bare pyzmq": ("benchmarks.ingest_bare", ()),
}


def run(*, quick: bool = False, tcp: bool = False) -> list[dict[str, Any]]:
    """Figures of each size and kind of server. tcp: with the relay of bytes below the messages."""
    sizes = [size._replace(window_s=0.4) for size in SIZES] if quick else SIZES
    return [measure(size, kind, tcp, pairs=3 if quick else PAIRS) for size in sizes for kind in KINDS]


def measure(size: Size, kind: str, tcp: bool, pairs: int) -> dict[str, Any]:
    module, arguments = KINDS[kind]
    command = (module, "--dimension", str(size.dimension), "--clients", str(CLIENTS), *arguments)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with ExitStack() as stack:
        alone, behind = (stack.enter_context(process(*command)) for _ in range(2))
        injector = stack.enter_context(_injector(behind["address"], tcp))
        direct, through = (
            Clients(context, server["address"], count=CLIENTS, dimension=size.dimension) for server in (alone, injector)
        )
        measured: dict[Clients, list[float]] = {direct: [], through: []}
        pids = {direct: [alone["process"].pid], through: [behind["process"].pid, injector["process"].pid]}
        others_s: dict[Clients, list[float]] = {direct: [], through: []}  # of server and clients
        injector_s = []
        for pair in range(pairs):
            for clients in (direct, through) if pair % 2 == 0 else (through, direct):
                before_s = [machine.processor_s(pid) for pid in (os.getpid(), *pids[clients])]
                sent_before = clients.sent
                measured[clients].append(clients.updates_per_s(WARM_S, size.window_s))
                sent = clients.sent - sent_before
                after_s = [machine.processor_s(pid) for pid in (os.getpid(), *pids[clients])]
                used_s = [(after - before) / sent for before, after in zip(before_s, after_s, strict=True)]
                others_s[clients].append(sum(used_s[:2]))
                injector_s += used_s[2:]
        direct.close()
        through.close()
    context.term()
    return {
        "size": size.name,
        "server": kind,
        "direct_per_s": measured[direct],
        "through_per_s": measured[through],
        "ratios": [one / other for one, other in zip(measured[through], measured[direct], strict=True)],
        "processor_s": statistics.median(injector_s),
        "direct_processor_s": statistics.median(others_s[direct]),
        "through_processor_s": statistics.median(others_s[through]),
    }


@contextmanager
def _injector(upstream: str, tcp: bool) -> Iterator[dict[str, Any]]:
    section = {"address": "tcp://127.0.0.1:0", "upstream": upstream, "http-address": "127.0.0.1:0"}
    options = [part for key, value in section.items() for part in (f"--injector.{key}", value)]
    layer = ["--injector.tcp"] if tcp else []
    with process("unstale", "inject", "--json", "--clients", str(CLIENTS), *options, *layer) as injector:
        yield injector


def markdown(figures: list[dict[str, Any]], tcp: bool) -> str:
    """The figures as a table."""
    rows = [
        (
            figure["size"],
            figure["server"],
            report.median_and_spread(figure["ratios"]),
            f"{GOAL_RATIO}",
            report.median_and_spread(figure["through_per_s"], ",.0f"),
            report.median_and_spread(figure["direct_per_s"], ",.0f"),
            f"{figure['processor_s'] * 1e3:.3f} ms",
            f"{figure['direct_processor_s'] * 1e3:.3f} ms",
            f"{figure['through_processor_s'] * 1e3:.3f} ms",
            f"{figure['direct_processor_s'] / (figure['through_processor_s'] + figure['processor_s']):.2f}",
        )
        for figure in figures
    ]
    headings = (
        "update",
        "server",
        "ratio (spread)",
        "goal",
        "through, updates/s",
        "direct, updates/s",
        "injector",
        "others, direct",
        "others, through",
        "bound",
    )
    layer = ", with the relay of bytes below" if tcp else ""
    return (
        f"Updates a second from {CLIENTS} clients that answer at once, through an injector without toxics{layer}, "
        f"and direct; median and spread of {len(figures[0]['ratios'])} alternating pairs. The times are "
        f"processor time for an update, its answer and other messages, of the injector and of server and clients; the "
        f"bound is the ratio where all cores are busy.\n\n{report.table(headings, rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short")
    parser.add_argument("--tcp", action="store_true", help="with the relay of bytes below the messages")
    arguments = parser.parse_args()
    print(markdown(run(quick=arguments.quick, tcp=arguments.tcp), arguments.tcp))


if __name__ == "__main__":
    main()
