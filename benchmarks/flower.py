"""Rounds a second of the simulator and of Flower's simulation engine, on the same work.

CIFAR-10, Dirichlet 0.3, lenet_cifar, 100 clients of which 10 train in each synchronous round: Flower has no rounds of
the first K. Federated averaging by examples, local steps of SGD. Two sizes of a round: 5 local steps of batch 32, as in
the preset fh-t1, and one of batch 64, with less computation. Both have one single-threaded process per core and no
evaluation between rounds. They alternate, each time in new processes; timing starts at a round after the first ones,
when all processes are up, and ends with the last.

Flower is `flwr[simulation]` with Ray workers, started by `flwr.simulation.run_simulation`: the engine of `flwr run`
without its server process. `num_cpus` is 1, which gives a worker per core. Its server polls for replies every 0.1 s; it
is also measured with 0.01 s, which is not a documented option.

    python -m benchmarks.flower [--data FILE.npz] [--environment FOLDER] [--quick]

Not part of `make bench`: the first run installs Flower, half a gigabyte, with pip into a virtual environment of its
own, which also imports the packages of this one, such as PyTorch. Telemetry of Flower and Ray is off.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from benchmarks import report
from benchmarks.simulation_preset import settings_of, write_noise
from unstale.config.settings import Settings, SimulationSettings
from unstale.learner.learner import RoundResult
from unstale.learner.updates import RoundUpdate
from unstale.metrics.progress import Progress
from unstale.settings.learning import PolicySettings, SelectorSettings, TriggerSettings
from unstale.simulator.assemble import simulation
from unstale.simulator.synchronous_compute import Watcher
from unstale.training.measured import Measured

VERSION = "1.41.0"
ENVIRONMENT = Path("~/.cache/unstale/flower").expanduser()
CLIENTS_OF_A_ROUND = 10
SIZES = {"5 steps of batch 32": (5, 32), "1 step of batch 64": (1, 64)}
LEARNING_RATE = 0.05  # high enough that a few rounds show whether both learn
ROUNDS_BEFORE = 5
ROUNDS = 40
TURNS = 5
BUDGET = 6
PATIENCE_S = 600

OURS = "unstale"
PULL_INTERVALS_S = {"Flower": 0.1, "Flower, looking every 0.01 s": 0.01}

ROOT = Path(__file__).parent.parent
SOURCES = (ROOT, ROOT / "services", ROOT / "proto", ROOT / "client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """rounds_per_s: of the timed rounds. first_s: from the start of a process to the first round. accuracy: of the last
    model, and loss, in nats.
    """

    rounds_per_s: float
    first_s: float
    accuracy: float
    loss: float


def run(data: Path, python: Path, folder: Path, quick: bool = False) -> dict[str, dict[str, list[Turn]]]:
    """Turns of each arrangement, by size of the rounds. python: of the environment with Flower."""
    turns, rounds = (1, 15) if quick else (TURNS, ROUNDS)
    figures: dict[str, dict[str, list[Turn]]] = {}
    for number, (size, (steps, batch)) in enumerate(SIZES.items()):
        settings = _settings(data, steps, batch, ROUNDS_BEFORE + rounds)
        file = folder / f"settings-{number}.json"
        file.write_text(settings.model_dump_json(), encoding="utf-8")
        found = figures[size] = {name: [] for name in (OURS, *PULL_INTERVALS_S)}
        for _ in range(turns):
            ours = [sys.executable, "-m", "benchmarks.flower", "--ours", str(file)]
            found[OURS].append(measured(ours, folder, ROUNDS_BEFORE))
            for name, pull_s in PULL_INTERVALS_S.items():
                theirs = [str(python), "-m", "benchmarks.flower_app", str(file), str(pull_s)]
                found[name].append(measured(theirs, folder, ROUNDS_BEFORE))
    return figures


def _settings(data: Path, steps: int, batch: int, rounds: int) -> Settings:
    preset = settings_of(data)
    several = (os.cpu_count() or 1) > 1
    return preset.model_copy(
        update={
            "rounds": rounds,
            "evaluate_every": rounds,
            "training": preset.training.model_copy(
                update={"steps": steps, "batch_size": batch, "learning_rate": LEARNING_RATE}
            ),
            "policy": PolicySettings(name="fedavg", settings={"weighting": "samples"}),
            "trigger": TriggerSettings(name="sync"),
            "selector": SelectorSettings(name="random", size=CLIENTS_OF_A_ROUND),
            "simulation": SimulationSettings(backend="processes" if several else "loop"),
        }
    )


def measured(command: Sequence[str], folder: Path, rounds_before: int) -> Turn:
    """Run one side and return its figures. rounds_before: that are not timed."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
        "OMP_NUM_THREADS": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_HOME": str(folder / "flwr"),
        "RAY_TMPDIR": str(folder),
    }
    started_s = time.perf_counter()  # one clock for all processes of a machine
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    fields = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    applied_s = fields["applied_s"]
    timed_s = applied_s[-1] - applied_s[rounds_before - 1]
    return Turn(
        rounds_per_s=(len(applied_s) - rounds_before) / timed_s,
        first_s=applied_s[0] - started_s,
        accuracy=fields["accuracy"],
        loss=fields["loss"],
    )


# --- our side ---


class Marks(Watcher):
    """Records the time of each applied round."""

    def __init__(self) -> None:
        self.applied_s: list[float] = []

    @override
    def round_applied(self, result: RoundResult, updates: Sequence[RoundUpdate]) -> None:
        self.applied_s.append(time.perf_counter())

    @override
    def evaluated(self, version: int, evaluation: Measured, at_s: float) -> None:
        pass


def _play(file: Path) -> dict[str, Any]:
    marks = Marks()
    measured: list[Progress] = []
    settings = Settings(**json.loads(file.read_text(encoding="utf-8")))
    simulation(settings, on_progress=measured.append, watcher=marks).run()
    return {"applied_s": marks.applied_s, **measured[-1].metrics}


# --- Flower's environment ---


def environment_of(folder: Path, version: str = VERSION) -> Path:
    """The Python of the environment with a version of Flower, created if missing."""
    python = folder / "bin" / "python"
    installed = next(folder.glob(f"lib/python*/site-packages/flwr-{version}.dist-info"), None)
    if installed is None:
        print(f"Installing flwr[simulation] {version} into {folder} ...", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", f"flwr[simulation]=={version}"], check=True)
        installed = next(folder.glob(f"lib/python*/site-packages/flwr-{version}.dist-info"))
    add_our_packages(installed.parent)
    return python


def add_our_packages(site_packages: Path) -> None:
    """Let an environment import the packages of this one behind its own: PyTorch, and our dependencies."""
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site_packages / "behind.pth").write_text("\n".join((*ours, "")), encoding="utf-8")


# --- printed numbers ---


def markdown(figures: dict[str, dict[str, list[Turn]]], data: str) -> str:
    """The figures as a table."""
    rows = [
        (
            f"{size}, {name}",
            report.median_and_spread([turn.rounds_per_s for turn in turns]),
            report.median_and_spread(
                [ours.rounds_per_s / theirs.rounds_per_s for ours, theirs in zip(found[OURS], turns, strict=True)],
                ".1f",
            ),
            report.median_and_spread([turn.first_s for turn in turns], ".1f"),
            report.median_and_spread([turn.accuracy for turn in turns]),
            report.median_and_spread([turn.loss for turn in turns]),
        )
        for size, found in figures.items()
        for name, turns in found.items()
    ]
    turns = len(next(iter(figures.values()))[OURS])
    return (
        f"{data}, 100 clients, Dirichlet 0.3, synchronous rounds of {CLIENTS_OF_A_ROUND}, lenet_cifar; flwr {VERSION} "
        "with a Ray worker a core, unstale with a process a core, each of one thread; median and spread of "
        f"{turns} turns. Budget: {BUDGET} times as many rounds. Accuracy and loss are of the last model; Flower draws "
        "other clients.\n\n"
        + report.table(("round, simulator", "rounds/s", "unstale over it", "first round, s", "accuracy", "loss"), rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="CIFAR-10 as .npz; default: noise of its shape")
    parser.add_argument(
        "--environment", type=Path, default=ENVIRONMENT, help="where Flower is, or is put: default %(default)s"
    )
    parser.add_argument("--quick", action="store_true", help="one turn of few rounds")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.ours is not None:
        print(json.dumps(_play(arguments.ours)))
        return
    python = environment_of(arguments.environment)
    with tempfile.TemporaryDirectory(prefix="unstale-bench-") as name:
        folder = Path(name)
        data = arguments.data
        if data is None:
            data = folder / "noise.npz"
            write_noise(data)
        figures = run(data.resolve(), python, folder, arguments.quick)
        print(markdown(figures, "Noise like CIFAR-10" if arguments.data is None else "CIFAR-10"))


if __name__ == "__main__":
    main()
