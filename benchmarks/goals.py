"""Every goal of speed and size in one table, measured now, beside what was measured when it was last written down.

Each benchmark runs shortly, in a process of its own, and most of its values are ratios to something else that is
measured in the same run. All together take under 20 minutes on two cores.

    python -m benchmarks.goals [--only NAME ...] [--write] [--warn]
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import machine, report

WRITTEN = Path(__file__).parent / "results" / "goals.json"
GENEROUS = 1.5  # a factor by which `--warn` lets a value be worse than the one written down
WARNED: dict[str, dict[str, int]] = {"ingest": {}, "simulation": {"turns": 3, "rounds": 20}, "aggregation": {}}
"""What `--warn` measures, with the arguments that make it short."""

Values = dict[str, list[float]]  # by the name of a goal


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound of one value. before: the value when the goal was set, as text."""

    bound: float | None
    what: str
    before: str = "-"
    is_most: bool = False  # the value is to be at most the bound, else at least

    def is_met(self, value: float) -> bool:
        return self.bound is None or (value <= self.bound if self.is_most else value >= self.bound)

    def is_worse(self, value: float, before: float, factor: float) -> bool:
        """Whether a value is worse than another one by more than a factor."""
        return value > before * factor if self.is_most else value < before / factor

    def __str__(self) -> str:
        if self.bound is None:
            return self.what
        return f"{'at most' if self.is_most else 'at least'} {self.bound:g} {self.what}"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Some goals that are measured together."""

    measure: Callable[..., Values]
    goals: dict[str, Goal]


def _ingest() -> Values:
    from benchmarks import ingest

    shape = ingest.USUAL._replace(durability="normal")
    sizes = [size._replace(window_s=0.7, acks=64) for size in ingest.SIZES]
    return {f"ingest, {size.name}": ingest.measure(size, shape, pairs=5)["ratios"] for size in sizes}


def _simulation(turns: int = 5, rounds: int = 100) -> Values:
    from benchmarks import simulation

    torch.set_num_threads(1)
    values: Values = {}
    for figure in simulation.run(turns=turns, rounds=rounds, only=(simulation.BARE, simulation.LOOP)):
        seconds = figure["seconds"]
        pairs = zip(seconds[simulation.LOOP], seconds[simulation.BARE], strict=True)
        values[f"simulation, {figure['model']}"] = [ours / theirs for ours, theirs in pairs]
    return values


def _aggregation() -> Values:
    from benchmarks import aggregation

    torch.set_num_threads(1)
    (found,) = aggregation.run(only=("fedavg", "wkafl", "fedhist"), dimensions=(1_000_000,), rows=(10,))["sizes"]
    return {f"aggregation, {name}": [ratio] for name, ratio in found["ratios"].items()}


def _simulated_clients() -> Values:
    from benchmarks import simulation_scale

    figures = simulation_scale.run()
    return {
        "100,000 simulated clients, rounds": [figures["rounds_per_s"]],
        "100,000 simulated clients, memory": [figures["memory_bytes"] / 1e9],
    }


def _injector() -> Values:
    from benchmarks import injector

    figures = [injector.measure(size, "unstale", False, pairs=5) for size in injector.SIZES]
    return {f"injector, {figure['size']}": figure["ratios"] for figure in figures}


def _ten_thousand() -> Values:
    from benchmarks import ten_thousand

    looks = ten_thousand.measure(ten_thousand.parsed(["--rounds", "500", "--keep-s", "100"]))["looks"]
    last = looks[-1]
    return {
        "10,000 clients, joined": [next((one.at_s for one in looks if one.connected == 10_000), float("inf"))],
        "10,000 clients, updates": [last.accepted / last.at_s],
        "10,000 clients, lost": [max(one.lost for one in looks)],
        "10,000 clients, memory": [max(one.memory_bytes for one in looks) / 1e9],
    }


def _first_round() -> Values:
    from benchmarks import first_round

    figures = first_round.run(repeats=3)
    names = {"help": "unstale --help", "first round": "server and client", "demo": "demo", "reproduce": "reproduce run"}
    return {f"start, {name}": figures[step] for step, name in names.items()}


def _gigabytes() -> Values:
    from benchmarks import gigabytes

    given = gigabytes.parsed(["--megabytes", "200", "--clients", "3", "--rounds", "2"])
    found = gigabytes.run(given)
    model = 4 * given.dimension
    return {
        "200 MB, 3 clients, memory of the server": [found["server"]["anonymous"] / model],
        "200 MB, 3 clients, memory of a client": [max(one["anonymous"] for one in found["clients"]) / model],
    }


OF_BARE, READS, OF_LOOP = "of bare pyzmq", "reads of the matrix", "times the bare loop"
OF_DIRECT, MODELS = "of a direct connection", "models"
BENCHMARKS = {
    "ingest": Benchmark(
        _ingest,
        {
            "ingest, 1 KB": Goal(0.6, OF_BARE, "0.24"),
            "ingest, 250 KB": Goal(0.8, OF_BARE, "0.39"),
            "ingest, 4 MB": Goal(0.9, OF_BARE, "0.52"),
        },
    ),
    "simulation": Benchmark(
        _simulation,
        {
            "simulation, digits_cnn": Goal(1.05, OF_LOOP, "1.19", is_most=True),
            "simulation, lenet_28": Goal(1.05, OF_LOOP, "1.17", is_most=True),
            "simulation, lenet_cifar": Goal(1.05, OF_LOOP, "1.04", is_most=True),
        },
    ),
    "aggregation": Benchmark(
        _aggregation,
        {
            "aggregation, fedavg": Goal(2, READS, is_most=True),
            "aggregation, wkafl": Goal(6, READS, is_most=True),
            "aggregation, fedhist": Goal(None, READS, is_most=True),
        },
    ),
    "injector": Benchmark(
        _injector, {"injector, 250 KB": Goal(0.85, OF_DIRECT, "0.61"), "injector, 4 MB": Goal(0.85, OF_DIRECT, "0.65")}
    ),
    "ten_thousand": Benchmark(
        _ten_thousand,
        {
            "10,000 clients, joined": Goal(30, "s", "10", is_most=True),
            "10,000 clients, updates": Goal(1000, "a second", "600 to 120, then aborted"),
            "10,000 clients, lost": Goal(0, "clients", is_most=True),
            "10,000 clients, memory": Goal(1, "GB", "0.9", is_most=True),
        },
    ),
    "first_round": Benchmark(
        _first_round,
        {
            "start, unstale --help": Goal(0.4, "s", is_most=True),
            "start, server and client": Goal(3, "s", "3.96", is_most=True),
            "start, demo": Goal(3, "s", is_most=True),
            "start, reproduce run": Goal(3, "s", "5.3", is_most=True),
        },
    ),
    "gigabytes": Benchmark(
        _gigabytes,
        {
            "200 MB, 3 clients, memory of the server": Goal(4, MODELS, "3.4 (60 MB)", is_most=True),
            "200 MB, 3 clients, memory of a client": Goal(2, MODELS, "3.5 (60 MB)", is_most=True),
        },
    ),
    "simulated_clients": Benchmark(
        _simulated_clients,
        {
            "100,000 simulated clients, rounds": Goal(100, "a second", "107"),
            "100,000 simulated clients, memory": Goal(2, "GB", "0.80", is_most=True),
        },
    ),
}


def measured(name: str, *options: str) -> Values:
    """The values of one benchmark, from a process of its own."""
    arguments = [sys.executable, "-m", "benchmarks.goals", "--measure", name, *options]
    values: Values = json.loads(subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return values


def row(name: str, goal: Goal, values: list[float], written: list[float] | None) -> list[str]:
    """One line of the table."""
    verdict = "" if goal.bound is None else "met" if goal.is_met(statistics.median(values)) else "missed"
    last = "-" if written is None else _number(statistics.median(written))
    now = _number(statistics.median(values))
    if len(values) > 1:
        now += f" ({_number(min(values))} to {_number(max(values))})"
    return [name, str(goal), goal.before, last, now, verdict]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def warnings(values: Values, written: Values) -> list[str]:
    """A sentence for each value that is worse than the one written down by more than the generous factor."""
    goals = {name: goal for benchmark in BENCHMARKS.values() for name, goal in benchmark.goals.items()}
    said = []
    for name, found in values.items():
        if name not in written:
            continue
        now, last = statistics.median(found), statistics.median(written[name])
        if goals[name].is_worse(now, last, GENEROUS):
            said.append(f"warning: {name} is {now:.3g} {goals[name].what}, and was {last:.3g} when it was written down")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), metavar="NAME")
    parser.add_argument("--measure", choices=BENCHMARKS, help="measure this in this process, and print it as JSON")
    parser.add_argument("--write", action="store_true", help=f"write the values to {WRITTEN.name}")
    parser.add_argument(
        "--warn", action="store_true", help=f"measure {', '.join(WARNED)} and only warn of what got much worse"
    )
    given = parser.parse_args()
    if given.measure is not None:
        print(json.dumps(BENCHMARKS[given.measure].measure(**WARNED[given.measure] if given.warn else {})))
        return
    written: Values = json.loads(WRITTEN.read_text())["values"] if WRITTEN.exists() else {}
    values: Values = {}
    for name in WARNED if given.warn else given.only:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        values |= measured(name, *["--warn"] if given.warn else [])
        if given.write:
            head = {"machine": machine.hardware(), "month": machine.month()}
            WRITTEN.write_text(json.dumps({**head, "values": written | values}, indent=1) + "\n")
    if given.warn:
        print("\n".join(warnings(values, written)) or f"{', '.join(WARNED)}: as when they were written down")
        return
    rows = [
        row(name, goal, values[name], written.get(name))
        for benchmark in BENCHMARKS.values()
        for name, goal in benchmark.goals.items()
        if name in values
    ]
    print(report.table(["", "goal", "before", "written down", "now (spread)", ""], rows))


if __name__ == "__main__":
    main()
