"""Staleness of one scenario through real sockets and in the simulator.

For each scenario and seed the same configuration runs once as processes (a server, the injector, two client processes
over loopback) and once in virtual time. A two-sample Kolmogorov-Smirnov test compares the staleness of all updates that
were aggregated. They agree when p > 0.01 in nine of ten seeds.

    python -m benchmarks.scenario_agreement [--quick] [--plot FILE.png] [--store FILE.json]
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import ks_2samp

from benchmarks import report
from unstale.config.settings import Settings
from unstale.config.write import as_variables
from unstale.coordinator import actions, events
from unstale.server.service import Server
from unstale.simulator.assemble import simulation

SEEDS = 10
ROUNDS = 120
CLIENTS = 20
K = 4
P_MIN = 0.01
AGREEING_SEEDS_MIN = 9


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario, ready or a file, and the factor of its times, so that a run takes seconds."""

    name: str
    scenario: str
    time_scale: float


HERE = Path(__file__).parent / "scenarios"
CASES = (
    Case("exponential", "exponential", 0.3),
    Case("slow-tenth", "slow-tenth", 0.3),
    Case("far", str(HERE / "far.yaml"), 0.3),
    Case("faults", str(HERE / "faults.yaml"), 0.3),
)


def run(quick: bool = False, plot: Path | None = None, store: Path | None = None) -> list[dict[str, Any]]:
    """A row per scenario and seed. store: file of the results through sockets, reused where present."""
    kept: dict[str, list[int]] = json.loads(store.read_text()) if store is not None and store.exists() else {}
    seeds, rounds = (2, 40) if quick else (SEEDS, ROUNDS)
    rows, drawn = [], []
    for case in CASES:
        for seed in range(seeds):
            settings = settings_of(case, seed, rounds)
            name = f"{case.name} {seed} {rounds}"
            if name not in kept:
                kept[name] = through_sockets(settings)
                if store is not None:
                    store.write_text(json.dumps(kept))
            sockets, virtual = kept[name], in_simulation(settings)
            rows.append(_row(case, seed, sockets, virtual))
            drawn.append((case, seed, sockets, virtual))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if plot is not None:
        _plot([one for one in drawn if one[1] == 0], plot)
    return rows


def settings_of(case: Case, seed: int, rounds: int) -> Settings:
    """The settings of both runs."""
    return Settings.model_validate(
        {
            "seed": seed,
            "clients": CLIENTS,
            "rounds": rounds,
            "evaluate_every": 10**9,
            "device": "cpu",
            "model": {"name": "logreg"},
            "partition": {"name": "iid"},
            "training": {"steps": 1, "batch_size": 8},
            "trigger": {"name": "k-async", "k": K},
            "scenario": {"name": case.scenario, "time_scale": case.time_scale},
            "server": {"address": "tcp://127.0.0.1:0", "http_address": None, "heartbeat_s": 0.25, "lease_s": 30.0},
            "injector": {"address": "tcp://127.0.0.1:0", "http_address": None},
        }
    )


class Staleness:
    """Staleness of every aggregated update, in the order of the rounds."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def observe(self, _: events.Event, following: Sequence[actions.Action]) -> None:
        for action in following:
            if isinstance(action, actions.ApplyRound):
                self.rounds += [contribution.staleness for contribution in action.contributions]


def in_simulation(settings: Settings) -> list[int]:
    """Staleness in virtual time."""
    staleness = Staleness()
    simulation(settings, on_progress=lambda _: None, observe=staleness.observe).run()
    return staleness.rounds


def through_sockets(settings: Settings) -> list[int]:
    """Staleness over loopback: the server in this process, the others in processes of their own."""
    staleness = Staleness()
    server = Server(settings, on_progress=lambda _: None, observe=staleness.observe)
    with ExitStack() as stack:
        injector = stack.enter_context(_Process(settings, "inject", "--upstream", server.address, "--json"))
        assert injector.stdout is not None
        listening = json.loads(injector.stdout.readline())
        half = settings.clients // 2
        for first in (0, half):
            stack.enter_context(
                _Process(
                    settings, "client", "--server", listening["address"], "--first", str(first), "--count", str(half)
                )
            )
        server.run()
    return staleness.rounds


class _Process:
    """A process of an unstale command, terminated with its context."""

    def __init__(self, settings: Settings, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "unstale", *arguments],
            env={**os.environ, **as_variables(settings)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> subprocess.Popen[str]:
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _row(case: Case, seed: int, sockets: list[int], virtual: list[int]) -> dict[str, Any]:
    test = ks_2samp(sockets, virtual)
    return {
        "scenario": case.name,
        "seed": seed,
        "updates": len(sockets),
        "mean, sockets": sum(sockets) / len(sockets),
        "mean, simulated": sum(virtual) / len(virtual),
        "distance": float(test.statistic),
        "p": float(test.pvalue),
    }


def _plot(drawn: Sequence[tuple[Case, int, list[int], list[int]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(drawn), figsize=(4.2 * len(drawn), 3.6), sharey=True, layout="constrained")
    for axis, (case, _, sockets, virtual) in zip(axes, drawn, strict=True):
        longest = max(*sockets, *virtual)
        bins = [value - 0.5 for value in range(longest + 2)]
        axis.hist(
            [sockets, virtual], bins=bins, density=True, label=["sockets", "simulated"], color=["#1f5f8b", "#e59a3c"]
        )
        axis.set_title(case.name)
        axis.set_xlabel("staleness, rounds")
    axes[0].set_ylabel("share of updates")
    axes[-1].legend(frameon=False)
    figure.suptitle(f"Staleness through sockets and in simulation, seed 0 ({CLIENTS} clients, K = {K})")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds, fewer rounds")
    parser.add_argument("--plot", type=Path, help="file for the histograms of seed 0")
    parser.add_argument("--store", type=Path, help="file of the results through sockets, to resume from")
    arguments = parser.parse_args()
    rows = run(arguments.quick, arguments.plot, arguments.store)
    headings = list(rows[0])
    cells = [[f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    print(report.table(headings, cells))
    for case in CASES:
        agreeing = [row["p"] > P_MIN for row in rows if row["scenario"] == case.name]
        print(f"\n{case.name}: p > {P_MIN} in {sum(agreeing)} of {len(agreeing)} seeds")


if __name__ == "__main__":
    main()
