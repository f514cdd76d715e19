"""Updates a second through the injector, without toxics, beside a direct connection; budget: 0.8 of it from 250 KB on.

Two servers of a kind run in processes of their own, one of them behind an injector in a process of its own. 4 clients
that answer at once alternate between them in pairs of windows, so that other load affects both; the ratio is taken per
pair. One kind is the real server, which applies real rounds as in `benchmarks.ingest`; the other is the bare echo
server of that benchmark, which only transports.

    python -m benchmarks.injector [--quick] [--tcp]
"""

import argparse
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import zmq

from benchmarks import machine, report
from benchmarks.ingest import WARM_S, process
from benchmarks.ingest_clients import Clients

BUDGET_RATIO = 0.8
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
    """Figures of one size and kind of server."""
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
        processor_s = []
        for pair in range(pairs):
            for clients in (direct, through) if pair % 2 == 0 else (through, direct):
                before_s, sent_before = machine.processor_s(injector["process"].pid), clients.sent
                measured[clients].append(clients.updates_per_s(WARM_S, size.window_s))
                if clients is through:
                    used_s = machine.processor_s(injector["process"].pid) - before_s
                    processor_s.append(used_s / (clients.sent - sent_before))
        direct.close()
        through.close()
    context.term()
    return {
        "size": size.name,
        "server": kind,
        "direct_per_s": measured[direct],
        "through_per_s": measured[through],
        "ratios": [one / other for one, other in zip(measured[through], measured[direct], strict=True)],
        "processor_s": statistics.median(processor_s),
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
            f"{BUDGET_RATIO}",
            report.median_and_spread(figure["through_per_s"], ",.0f"),
            report.median_and_spread(figure["direct_per_s"], ",.0f"),
            f"{figure['processor_s'] * 1e3:.3f} ms",
        )
        for figure in figures
    ]
    headings = (
        "update",
        "server",
        "ratio (spread)",
        "budget",
        "through, updates/s",
        "direct, updates/s",
        "processor time",
    )
    layer = ", with the relay of bytes below" if tcp else ""
    return (
        f"Updates a second from {CLIENTS} clients that answer at once, through an injector without toxics{layer}, "
        f"and direct; median and spread of {len(figures[0]['ratios'])} alternating pairs. Processor time is the "
        f"injector's, for an update, its answer and what goes with them.\n\n{report.table(headings, rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short")
    parser.add_argument("--tcp", action="store_true", help="with the relay of bytes below the messages")
    arguments = parser.parse_args()
    print(markdown(run(quick=arguments.quick, tcp=arguments.tcp), arguments.tcp))


if __name__ == "__main__":
    main()
