"""Updates a second through the real server, beside a bare pyzmq echo server; budget: 0.7 of it from 250 KB on.

Both servers run in processes of their own for all measurements of a size, and clients that answer at once alternate
between them in pairs of windows, so that other load affects both. The ratio is taken per pair. The real server
decodes, validates, deduplicates, stages, screens for NaN, acknowledges and applies real rounds: fedavg, `buffered`,
which receives during a round. More clients and larger rounds share more updates per loop iteration, transaction and
round: measured with 64 clients and K = 32, and with 16 and FedBuff's K = 10.

Unless durability is `off`, an update is stored before it is acknowledged; budget with `normal`: 0.35. Models over
4 MiB go in chunks, which `benchmarks.large_transfer` measures.

    python -m benchmarks.ingest [--quick] [--trigger k-async] [--durability normal] [--clients 4] [--k 4]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import zmq

from benchmarks import machine, report
from benchmarks.ingest_clients import Clients

WARM_S = 0.2
BUDGET_RATIO = {"off": 0.7, "normal": 0.35, "full": None}
BUDGET_ACK_S = 0.005


class Size(NamedTuple):
    """One size of model. pause_s: time for a round, before an ack is timed. acks: timed, at least one per client."""

    name: str
    dimension: int
    window_s: float
    pause_s: float
    acks: int


SIZES = (
    Size("1 KB", 256, 1.0, 0.005, 400),
    Size("250 KB", 62_500, 1.0, 0.005, 400),
    Size("4 MB", 1_000_000, 1.0, 0.02, 200),
)
PAIRS = 7


class Shape(NamedTuple):
    """The measured run. k: updates of a round. durability: of acknowledged updates, as in `run.durability`."""

    clients: int = 64
    k: int = 32
    trigger: str = "buffered"
    durability: str = "off"


USUAL = Shape()
SMALL = Shape(clients=16, k=10, durability="normal")


def run(quick: bool = False, shape: Shape = USUAL) -> list[dict[str, Any]]:
    """Figures of each size. quick: two sizes, short."""
    if quick:
        sizes = [size._replace(window_s=0.4, acks=64) for size in SIZES[1:3]]
        return [measure(size, shape, pairs=3) for size in sizes]
    return [measure(size, shape, pairs=PAIRS) for size in SIZES]


def measure(size: Size, shape: Shape, pairs: int) -> dict[str, Any]:
    """Figures of one size."""
    model = ("--dimension", str(size.dimension), "--clients", str(shape.clients))
    rounds = ("--trigger", shape.trigger, "--k", str(shape.k))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with (
        tempfile.TemporaryDirectory() as above,
        process(
            "benchmarks.ingest_server", *model, *rounds, *("--durability", shape.durability, "--folder", f"{above}/run")
        ) as real,
        process("benchmarks.ingest_bare", *model) as bare,
    ):
        ours, theirs = (
            Clients(context, server["address"], count=shape.clients, dimension=size.dimension)
            for server in (real, bare)
        )
        measured: dict[Clients, list[_Window]] = {ours: [], theirs: []}
        for pair in range(pairs):
            for clients in (ours, theirs) if pair % 2 == 0 else (theirs, ours):
                pid = (real if clients is ours else bare)["process"].pid
                measured[clients].append(_window(clients, pid, size.window_s))
        ack_s = [seconds for _ in range(max(1, size.acks // shape.clients)) for seconds in ours.ack_s(size.pause_s)]
        real["process"].terminate()
        bare["process"].terminate()
        real.update(json.loads(real["lines"].readline()))
        bare.update(json.loads(bare["lines"].readline()))
        ours.close()
        theirs.close()
    context.term()
    assert real["updates"] == {"accepted": ours.sent, "duplicate": 0, "rejected": 0}, (real, ours.sent)
    return {
        "size": size.name,
        "payload_bytes": 4 * size.dimension,
        "updates_per_s": [window.updates_per_s for window in measured[ours]],
        "bare_updates_per_s": [window.updates_per_s for window in measured[theirs]],
        "ratios": [
            mine.updates_per_s / other.updates_per_s
            for mine, other in zip(measured[ours], measured[theirs], strict=True)
        ],
        "processor_s": statistics.median(window.processor_s for window in measured[ours]),
        "bare_processor_s": statistics.median(window.processor_s for window in measured[theirs]),
        "rounds": real["versions"],
        "ack_s_p50": float(np.percentile(ack_s, 50)),
        "ack_s_p99": float(np.percentile(ack_s, 99)),
        "memory_peak_bytes": real["memory_peak_bytes"],
        "memory_before_bytes": real["memory_before_bytes"],
        "bare_memory_peak_bytes": bare["memory_peak_bytes"],
        "bare_memory_before_bytes": bare["memory_before_bytes"],
    }


class _Window(NamedTuple):
    """One measurement. processor_s: the server's processor time per update, on all cores."""

    updates_per_s: float
    processor_s: float


def _window(clients: Clients, pid: int, window_s: float) -> _Window:
    before_s, sent_before = machine.processor_s(pid), clients.sent
    updates_per_s = clients.updates_per_s(WARM_S, window_s)
    used_s = machine.processor_s(pid) - before_s
    return _Window(updates_per_s, used_s / (clients.sent - sent_before))


@contextmanager
def process(module: str, *arguments: str) -> Iterator[dict[str, Any]]:
    """Start a server process: the fields of its first line, `process`, and `lines`, its further output."""
    with subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield {"process": process, "lines": process.stdout, **json.loads(process.stdout.readline())}
        finally:
            if process.poll() is None:
                process.terminate()
                process.stdout.read()  # else its last line meets a closed pipe


def markdown(figures: list[dict[str, Any]], shape: Shape = USUAL) -> str:
    """The figures as tables."""
    budget = BUDGET_RATIO[shape.durability]
    throughput = report.table(
        ("update", "ratio (spread)", "budget", "unstale, updates/s", "bare pyzmq, updates/s", "processor time", "bare"),
        [
            (
                size["size"],
                report.median_and_spread(size["ratios"]),
                f"{budget}" if budget and size["payload_bytes"] >= 250_000 else "-",
                report.median_and_spread(size["updates_per_s"], ",.0f"),
                report.median_and_spread(size["bare_updates_per_s"], ",.0f"),
                f"{size['processor_s'] * 1e3:.3f} ms",
                f"{size['bare_processor_s'] * 1e3:.3f} ms",
            )
            for size in figures
        ],
    )
    latency = report.table(
        ("update", "ack p50", "ack p99", "budget", "peak memory", "above start", "bare: peak", "above start"),
        [
            (
                size["size"],
                f"{size['ack_s_p50'] * 1e3:.2f} ms",
                f"{size['ack_s_p99'] * 1e3:.2f} ms",
                f"{BUDGET_ACK_S * 1e3:.0f} ms",
                report.megabytes(size["memory_peak_bytes"]),
                _growth(size["memory_peak_bytes"], size["memory_before_bytes"]),
                report.megabytes(size["bare_memory_peak_bytes"]),
                _growth(size["bare_memory_peak_bytes"], size["bare_memory_before_bytes"]),
            )
            for size in figures
        ],
    )
    return (
        f"Updates accepted a second from {shape.clients} clients that answer at once, policy fedavg, trigger "
        f"{shape.trigger} with K = {shape.k}, durability {shape.durability}; median and spread of "
        f"{len(figures[0]['ratios'])} alternating pairs. "
        f"Processor time is the server's, for each update, on all cores.\n\n{throughput}\n\n"
        "One update to an idle server until its ack, its transfer included; resident memory of the server's process, "
        f"above what it had after its imports.\n\n{latency}"
    )


def _growth(peak_bytes: int | None, before_bytes: int) -> str:
    return report.megabytes(None if peak_bytes is None else peak_bytes - before_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two sizes, short")
    parser.add_argument("--clients", type=int, default=USUAL.clients, help=f"default: {USUAL.clients}")
    parser.add_argument("--k", type=int, default=USUAL.k, help=f"default: {USUAL.k}")
    parser.add_argument(
        "--trigger", choices=("buffered", "k-async"), default=USUAL.trigger, help=f"default: {USUAL.trigger}"
    )
    parser.add_argument("--durability", choices=tuple(BUDGET_RATIO), help="default: each")
    arguments = parser.parse_args()
    durabilities = [arguments.durability] if arguments.durability else list(BUDGET_RATIO)
    shapes = [Shape(arguments.clients, arguments.k, arguments.trigger, each) for each in durabilities]
    if shapes == [USUAL._replace(durability=each) for each in BUDGET_RATIO]:
        shapes.append(SMALL)
    for shape in shapes:
        title = f"## durability: {shape.durability}, {shape.clients} clients"
        print(f"{title}\n\n{markdown(run(arguments.quick, shape), shape)}\n", flush=True)


if __name__ == "__main__":
    main()
