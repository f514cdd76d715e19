"""Updates a second through a server with gateway processes, over those of a server without one.

Both run for all measurements of a size, and the clients of `benchmarks.ingest` alternate between them in pairs of
windows. The ratios are taken per pair; CPU time is that of the process that decides, without its gateway.

    python -m benchmarks.gateways [--gateways 1] [--quick]
"""

import argparse
import tempfile
from contextlib import ExitStack

import zmq

from benchmarks import machine, report
from benchmarks.ingest import PAIRS, WARM_S, process
from benchmarks.ingest_clients import Clients

CLIENTS, K = 64, 32
SIZES = (("1 KB", 256, "off"), ("250 KB", 62_500, "off"), ("250 KB", 62_500, "normal"), ("4 MB", 1_000_000, "normal"))


def compare(
    dimension: int, durability: str, gateways: int, pairs: int, window_s: float
) -> tuple[list[float], list[float]]:
    """Rates and CPU times an update with gateways, over those without, pair by pair."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    rates, seconds = [], []
    with ExitStack() as stack:
        servers = []
        for count in (0, gateways):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            of_run = ("--dimension", str(dimension), "--clients", str(CLIENTS), "--k", str(K), "--trigger", "buffered")
            stored = ("--durability", durability, "--folder", f"{folder}/run", "--gateways", str(count))
            servers.append(stack.enter_context(process("benchmarks.ingest_server", *of_run, *stored)))
        clients = [Clients(context, server["address"], count=CLIENTS, dimension=dimension) for server in servers]
        for pair in range(pairs):
            measured = {}
            for one in (0, 1) if pair % 2 == 0 else (1, 0):
                pid = servers[one]["process"].pid
                before_s, sent = machine.processor_s(pid), clients[one].sent
                rate = clients[one].updates_per_s(WARM_S, window_s)
                measured[one] = rate, (machine.processor_s(pid) - before_s) / (clients[one].sent - sent)
            rates.append(measured[1][0] / measured[0][0])
            seconds.append(measured[1][1] / measured[0][1])
        for each in clients:
            each.close()
        for server in servers:
            server["process"].terminate()
            server["lines"].read()
    context.term()
    return rates, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two sizes, three short pairs")
    parser.add_argument("--gateways", type=int, default=1, help="number of processes; default: 1")
    given = parser.parse_args()
    rows = []
    for name, dimension, durability in SIZES[:2] if given.quick else SIZES:
        ratios = compare(dimension, durability, given.gateways, *((3, 0.4) if given.quick else (PAIRS, 1.0)))
        rows.append([f"{name}, {durability}", *map(report.median_and_spread, ratios)])
    print(report.table(["update, durability", "updates a second", "CPU time an update"], rows))


if __name__ == "__main__":
    main()
