"""How costs grow: with connected and simulated clients, parameters, updates a round, the journal, and staleness.

Each point is measured in a process of its own; seconds are its processor time. An exponent is the slope between the
last two points, both on logarithmic scales: 0 is a cost that does not grow, 1 one that grows in proportion.

    python -m benchmarks.growth [--quick] [--only CURVE ...] [--picture growth.png]
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from xxhash import xxh3_64_intdigest

from benchmarks import machine, processes, report, ten_thousand
from benchmarks.aggregation import batch_of
from benchmarks.simulation_scale import simulation_of
from unstale.coordinator import events
from unstale.learner import row_checks
from unstale.learner.updates import write
from unstale.policies import create

Costs = dict[str, float]  # by name, in the units that the names say
CONNECTED_S = 4.0  # for which updates of connected clients are counted
ROUNDS_OF_CONNECTED = 1_000_000
PARTS_OF_MEMORY = 5  # vectors of the parameters that one point needs, with some room


# --- costs at one point ---


def connected(clients: int) -> Costs:
    """Of a server with one gateway and clients that answer at once."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        of_run = (f"--clients={clients}", f"--rounds={ROUNDS_OF_CONNECTED}", "--gateways=1", "--durability=normal")
        server = ten_thousand.Server(stack, folder, *of_run)
        parts = ten_thousand.parts_of(clients, 1 if clients < 2000 else 2)
        ten_thousand.start_hosts(stack, server.address, parts, None)
        http, pid, began_s = server.http, server.process.pid, time.monotonic()
        while (look := ten_thousand.look(http, pid, 0.0)) is None or look.active < clients:
            assert time.monotonic() < began_s + 120, f"not all of {clients} clients have joined: {look}"
            time.sleep(0.2)
        time.sleep(2.0)
        first, first_s = ten_thousand.look(http, pid, 0.0), _family_s(pid)
        time.sleep(CONNECTED_S)
        last, last_s = ten_thousand.look(http, pid, 0.0), _family_s(pid)
        assert first is not None and last is not None
        updates = last.accepted - first.accepted
        return {"us an update": (last_s - first_s) / updates * 1e6, "MB of the server": last.memory_bytes / 1e6}


def _family_s(pid: int) -> float:
    return sum(machine.processor_s(one.pid) for one in (psutil.Process(pid), *psutil.Process(pid).children()))


def simulated(clients: int) -> Costs:
    """Of clients in virtual time that compute nothing, in rounds of 100."""
    before_bytes = machine.memory_bytes()
    first_s: list[float] = []

    def observe(event: events.Event, _: object) -> None:
        if isinstance(event, events.RoundApplied) and event.version == 1:
            first_s.append(time.process_time())

    rounds, k = 300, min(100, clients)
    simulation = simulation_of(clients, rounds, k, observe)
    started_s = time.process_time()
    simulation.run()
    return {
        "us a task": (time.process_time() - first_s[0]) / ((rounds - 1) * k) * 1e6,
        "us a client at the start": (first_s[0] - started_s) / clients * 1e6,
        "MB of the process": ((machine.peak_memory_bytes() or 0) - before_bytes) / 1e6,
    }


def parameters(dimension: int) -> Costs:
    """Of an update that is decoded, checked, hashed and aggregated with another one, without sockets and disk."""
    update = torch.full((dimension,), 1e-3)
    frames = [memoryview(update.numpy()).cast("B")]
    matrix_KD = torch.empty(2, dimension)
    policy = create("fedavg", dimension=dimension, clients=2, device="cpu")
    batch = batch_of(dimension, 2, torch.device("cpu"), matrix_KD, models=1)
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < 1.0 and len(seconds) < 1000):
        started_s = time.process_time()
        for row_D in matrix_KD.numpy():
            write(row_D, frames, "delta", 0.1, dimension)
            assert np.isfinite(row_checks.norm(row_D))
            xxh3_64_intdigest(memoryview(row_D).cast("B"))
        policy.step(batch)
        seconds.append((time.process_time() - started_s) / len(matrix_KD))
    return {"us an update": min(seconds) * 1e6}


def of_a_round(policy_name: str, updates: int) -> Costs:
    """Of an update of 10,000 parameters in a step of a policy."""
    dimension, seconds = 10_000, []
    policy = create(
        policy_name, dimension=dimension, clients=4 * updates, device="cpu", round_size=updates, rounds=10**6
    )
    batch = batch_of(dimension, updates, torch.device("cpu"))
    for _ in range(5):
        batch.matrix_Kd.normal_()
        started_s = time.process_time()
        policy.step(batch)
        seconds.append((time.process_time() - started_s) / updates)
    return {f"us an update, {policy_name}": min(seconds) * 1e6}


def stored(rounds: int) -> Costs:
    """Of rounds of five updates that a simulation records, and of the commands that read them."""
    with tempfile.TemporaryDirectory() as folder:
        one, all_of_them = f"{folder}/one", f"{folder}/all"
        recorded_s = _recorded_s(all_of_them, rounds + 1) - _recorded_s(one, 1)
        size_bytes = sum(path.stat().st_size for path in Path(all_of_them).rglob("*") if path.is_file())
        return {
            "us a round": recorded_s / rounds * 1e6,
            "us a round to replay": (_command_s("replay", all_of_them) - _command_s("replay", one)) / rounds * 1e6,
            "bytes a round": size_bytes / rounds,
            "ms to explain a version": _command_s("explain", all_of_them, 1) * 1e3,
        }


def _recorded_s(directory: str, rounds: int) -> float:
    run = ("--rounds", rounds, "--clients", 20, "--policy", "fedavg", "--trigger", "k-async", "--k", 5)
    training = ("--training", "gradient", "--model", "logreg", "--set", "training.batch_size=1")
    return _command_s("simulate", *run, *training, "--evaluate-every", rounds, "--run", directory)


def _command_s(*arguments: object) -> float:
    """Processor time of an unstale command."""
    before = psutil.Process().cpu_times()
    subprocess.run([*processes.UNSTALE, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)
    after = psutil.Process().cpu_times()
    return float(after.children_user + after.children_system - before.children_user - before.children_system)


def stale(staleness: int) -> Costs:
    """Of an update of 10,000 parameters that is so many rounds stale on average: each is a round of its own."""
    clients, dimension = staleness + 1, 10_000
    rounds = 2000 + 4 * clients
    simulation = simulation_of(clients, rounds, 1, lambda *_: None, dimension)
    before_bytes, started_s = machine.memory_bytes(), time.process_time()
    simulation.run()
    return {
        "us an update": (time.process_time() - started_s) / rounds * 1e6,
        "MB of the process": ((machine.peak_memory_bytes() or 0) - before_bytes) / 1e6,
    }


# --- curves ---


@dataclass(frozen=True)
class Curve:
    """How costs grow with one quantity. expected: largest exponent of each that needs no explanation."""

    over: str
    points: tuple[int, ...]
    costs: Callable[[int], Costs]
    expected: float
    note: str = ""


def _policies(updates: int) -> Costs:
    costs: Costs = {}
    for name in ("fedavg", "fedhist", "wkafl", "fedar", "krum"):
        costs |= of_a_round(name, updates)
    return costs


CURVES = {
    "connected": Curve("connected clients", (10, 100, 1000, 10_000), connected, 1.0),
    "simulated": Curve("simulated clients", (100, 1000, 10_000, 100_000, 1_000_000), simulated, 1.0),
    "parameters": Curve("parameters", (10**4, 10**5, 10**6, 10**7, 10**8, 10**9), parameters, 1.0),
    "round": Curve("updates of a round", (2, 10, 100, 1000), _policies, 0.0, "krum compares all pairs"),
    "journal": Curve("recorded rounds", (300, 3000, 20_000), stored, 0.0),
    "staleness": Curve("mean staleness, rounds", (1, 10, 100, 1000), stale, 0.0, "each version in use is kept"),
}


def run(curve: Curve, name: str, quick: bool) -> Iterator[tuple[int, Costs]]:
    """The costs at each point that this machine has the memory for, each from a process of its own."""
    room = psutil.virtual_memory().available
    for point in curve.points[:2] if quick else curve.points:
        if name == "parameters" and PARTS_OF_MEMORY * 4 * point > room:
            return
        arguments = [sys.executable, "-m", "benchmarks.growth", "--only", name, "--point", str(point)]
        printed = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout
        yield point, json.loads(printed)


def exponent(points: Sequence[int], costs: Sequence[float]) -> float:
    """The slope between the last two points."""
    return math.log(costs[-1] / costs[-2]) / math.log(points[-1] / points[-2])


def markdown(measured: dict[str, list[tuple[int, Costs]]]) -> str:
    """A table for each curve."""
    parts = []
    for name, found in measured.items():
        curve, points = CURVES[name], [point for point, _ in found]
        rows = []
        for cost in found[0][1]:
            values = [costs[cost] for _, costs in found]
            rows.append([cost, *(f"{value:,.4g}" for value in values), f"{exponent(points, values):.2f}"])
        headings = [curve.over, *(f"{point:,}" for point in points), "exponent"]
        parts.append(report.table(headings, rows) + (f"\n\n{curve.note}." if curve.note else ""))
    return "\n\n".join(parts)


def picture(measured: dict[str, list[tuple[int, Costs]]], path: Path) -> None:
    """Draw a panel for each curve."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 3, figsize=(13, 7.5), layout="constrained")
    for panel, (name, found) in zip(panels.flat, measured.items(), strict=False):
        points = [point for point, _ in found]
        for cost in found[0][1]:
            panel.loglog(points, [costs[cost] for _, costs in found], marker="o", label=cost)
        panel.set_xlabel(CURVES[name].over)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    for panel in panels.flat[len(measured) :]:
        panel.set_visible(False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="two small points of each curve")
    parser.add_argument("--only", nargs="+", choices=CURVES, default=list(CURVES), metavar="CURVE")
    parser.add_argument("--point", type=int, help="measure this point in this process, and print its costs as JSON")
    parser.add_argument("--picture", type=Path, help="draw the curves into this file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.point is not None:
        print(json.dumps(CURVES[given.only[0]].costs(given.point)))
        return
    measured = {name: list(run(CURVES[name], name, given.quick)) for name in given.only}
    print(markdown(measured))
    if given.picture is not None:
        picture(measured, given.picture)


if __name__ == "__main__":
    main()
