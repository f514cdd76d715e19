"""Clients a second of the simulator, of Flower's simulation engine and of pfl-research, on pfl-research's workload.

Its CIFAR-10 benchmark has 1,500 synchronous rounds of 50 of 1,000 clients, which hold 50 images each, and a CNN of
1,626,442 parameters; a client trains one epoch of mini-batches of 10 with a learning rate of 0.1. A stated number of
rounds is timed here, without evaluation between them. Each side has one single-threaded process per core. They
alternate, each time in new processes; timing starts at a round after the first ones, when all processes are up, and
ends with the last.

    python -m benchmarks.pfl_cifar10 --data FILE.npz [--rounds N] [--turns N] [--quick]

Not part of `make bench`: the first run installs Flower and pfl-research with pip into virtual environments of their
own, which also import the packages of this one, such as PyTorch. `benchmarks.flower` says how Flower is started.
pfl-research is started by torchrun, as its documentation describes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import flower, report
from benchmarks.flower import OURS, Turn
from benchmarks.pfl_cifar10_model import PARAMETERS
from unstale.config.settings import Settings, SimulationSettings
from unstale.settings.learning import (
    DataSettings,
    ModelSettings,
    PartitionSettings,
    PolicySettings,
    SelectorSettings,
    TrainingSettings,
    TriggerSettings,
)

FLOWER, PFL = "Flower", "pfl-research"
PFL_VERSION = "0.6.0"
PFL_ENVIRONMENT = Path("~/.cache/unstale/pfl").expanduser()
PFL_PACKAGES = (
    *(f"pfl=={PFL_VERSION}", "multiprocess==0.70.19", "dill==0.4.1", "dp-accounting>=0.4,<0.6", "absl-py==2.5.1"),
    *("prv-accountant==0.2.0", "dm-tree==0.1.10", "mpmath==1.3.0", "attrs==26.1.0"),
)
"""pfl-research and packages that it imports, without PyTorch, NumPy and SciPy."""

ROUNDS_OF_WORKLOAD = 1500
CLIENTS, CLIENTS_OF_A_ROUND, EXAMPLES = 1000, 50, 50
BATCH, LEARNING_RATE = 10, 0.1
TESTED = 1000  # test examples, for the accuracy of the last model
ROUNDS_BEFORE, ROUNDS, TURNS = 2, 10, 3


def run(
    data: Path, pythons: Mapping[str, Path], folder: Path, *, rounds: int = ROUNDS, turns: int = TURNS
) -> dict[str, list[Turn]]:
    """Turns of each simulator. pythons: of the environments of Flower and pfl-research; the others are not measured."""
    file = folder / "settings.json"
    settings = settings_of(_with_fewer_tests(data, folder), ROUNDS_BEFORE + rounds)
    file.write_text(settings.model_dump_json(), encoding="utf-8")
    commands: dict[str, Sequence[str]] = {OURS: [sys.executable, "-m", "benchmarks.flower", "--ours", str(file)]}
    if FLOWER in pythons:
        commands[FLOWER] = [str(pythons[FLOWER]), "-m", "benchmarks.flower_app", str(file), "0.1"]
    if PFL in pythons:
        torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={os.cpu_count() or 1}")
        commands[PFL] = [str(pythons[PFL]), *torchrun, "-m", "benchmarks.pfl_app", str(file)]
    found: dict[str, list[Turn]] = {name: [] for name in commands}
    for _ in range(turns):
        for name, command in commands.items():
            found[name].append(flower.measured(command, folder, ROUNDS_BEFORE))
    return found


def _with_fewer_tests(data: Path, folder: Path) -> Path:
    """A copy of the data with every tenth test example: the files are in the order of the classes."""
    path = folder / "data.npz"
    with np.load(data) as arrays:
        every = max(len(arrays["y_test"]) // TESTED, 1)
        np.savez(path, **{name: arrays[name][::every] if name.endswith("test") else arrays[name] for name in arrays})
    return path


def settings_of(data: Path, rounds: int) -> Settings:
    several = (os.cpu_count() or 1) > 1
    return Settings(
        clients=CLIENTS,
        rounds=rounds,
        evaluate_every=rounds,
        threads=1,
        model=ModelSettings(name="benchmarks.pfl_cifar10_model:cnn"),
        data=DataSettings(name="npz", path=str(data)),
        partition=PartitionSettings(name="iid", min_examples=1),
        training=TrainingSettings(name="sgd", batch_size=BATCH, steps=None, epochs=1, learning_rate=LEARNING_RATE),
        policy=PolicySettings(name="fedavg", settings={"weighting": "samples"}),
        trigger=TriggerSettings(name="sync"),
        selector=SelectorSettings(name="random", size=CLIENTS_OF_A_ROUND),
        simulation=SimulationSettings(backend="processes" if several else "loop"),
    )


def environment_of(folder: Path) -> Path:
    """The Python of the environment with pfl-research, created if missing."""
    python = folder / "bin" / "python"
    installed = next(folder.glob(f"lib/python*/site-packages/pfl-{PFL_VERSION}.dist-info"), None)
    if installed is None:
        print(f"Installing pfl {PFL_VERSION} into {folder} ...", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", *PFL_PACKAGES], check=True)
        installed = next(folder.glob(f"lib/python*/site-packages/pfl-{PFL_VERSION}.dist-info"))
    flower.add_our_packages(installed.parent)
    return python


# --- printed numbers ---


def markdown(found: Mapping[str, Sequence[Turn]], rounds: int) -> str:
    """The figures as a table."""
    rows = [
        (
            name,
            report.median_and_spread([CLIENTS_OF_A_ROUND * turn.rounds_per_s for turn in turns], ".1f"),
            report.median_and_spread(
                [ours.rounds_per_s / theirs.rounds_per_s for ours, theirs in zip(found[OURS], turns, strict=True)]
            ),
            report.median_and_spread([turn.first_s for turn in turns], ".1f"),
            report.median_and_spread([turn.accuracy for turn in turns]),
        )
        for name, turns in found.items()
    ]
    cores = os.cpu_count() or 1
    return (
        f"CIFAR-10, {CLIENTS:,} clients of {EXAMPLES} images, synchronous rounds of {CLIENTS_OF_A_ROUND}, one epoch of "
        f"mini-batches of {BATCH}, {PARAMETERS:,} parameters, learning rate {LEARNING_RATE}; {rounds} of "
        f"{ROUNDS_OF_WORKLOAD:,} rounds after {ROUNDS_BEFORE} that are not timed; flwr {flower.VERSION}, pfl "
        f"{PFL_VERSION}; {cores} processes of one thread each; median and spread of {len(found[OURS])} alternating "
        "turns. Accuracy is that of the last model; each simulator draws other clients.\n\n"
        + report.table(("simulator", "clients/s", "unstale over it", "first round, s", "accuracy"), rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="CIFAR-10 as .npz; default: noise of its shape")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timed rounds of a turn: default %(default)s")
    parser.add_argument("--turns", type=int, default=TURNS, help="default %(default)s")
    parser.add_argument("--quick", action="store_true", help="unstale alone, one turn of one round")
    parser.add_argument(
        "--flower", type=Path, default=flower.ENVIRONMENT, help="where Flower is or is put: %(default)s"
    )
    parser.add_argument("--pfl", type=Path, default=PFL_ENVIRONMENT, help="where pfl is or is put: %(default)s")
    arguments = parser.parse_args()
    rounds, turns, pythons = arguments.rounds, arguments.turns, {}
    if arguments.quick:
        rounds, turns = 1, 1
    else:
        pythons = {FLOWER: flower.environment_of(arguments.flower), PFL: environment_of(arguments.pfl)}
    with tempfile.TemporaryDirectory(prefix="unstale-bench-") as name:
        folder = Path(name)
        data = arguments.data
        if data is None:
            data = folder / "noise.npz"
            flower.write_noise(data)
        print(markdown(run(data.resolve(), pythons, folder, rounds=rounds, turns=turns), rounds))


if __name__ == "__main__":
    main()
