"""Time to an accuracy of Flower's quickstart with stragglers: under FedBuff, over synchronous rounds of Flower.

The app is that of `flwr new` for PyTorch, byte for byte the same on both sides. It learns scikit-learn's digits in the
form of CIFAR-10, from a local `flwr_datasets` that also makes the stragglers: reading a partition takes a client's
delay. Six clients; a seed draws two of them, which wait ten times as long as the others before each training.

- unstale: a server and a process for each client over sockets on loopback, FedBuff with K = 3. The times are those of
  the journal, whose rounds are computed again after the run.
- Flower: `FedAvg` of flwr 1.42 on its simulation engine, with a Ray worker for each client. That is its faster way on
  one machine: a SuperNode starts a process for each message, which imports PyTorch first. Rounds of half of the
  clients, as the app's pyproject.toml says, and of all.

Both start from the same weights. Time starts at the first version, when the clients have imported the app, and is the
same for both. The accuracy of each version is measured afterwards, on the same test images.

    PYTHONPATH=tests python -m benchmarks.flower_stragglers [--environment FOLDER] [--quick]

The first run installs Flower and Ray, as `benchmarks.flower` does.
"""

import argparse
import json
import math
import os
import random
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from benchmarks import report
from benchmarks.flower import SOURCES, environment_of
from flower.environments import HERE, VERSIONS, Flower, fact_of, new_app
from unstale.journal.replay import RecordedRun

ENVIRONMENT = Path(f"~/.cache/unstale/flower-{VERSIONS[-1]}").expanduser()
CLIENTS, STRAGGLERS, K = 6, 2, 3
DELAY_S, FACTOR = 0.2, 10
LEARNING_RATE = 0.003
TARGET = 0.9
SEEDS = 3
RUN_S, EARLY_S = 20.0, 5.0
TRAINING_IMAGES = 800
PATIENCE_S = 280

OURS = "unstale, FedBuff"
FRACTIONS = {"Flower, half of the clients": 0.5, "Flower, all clients": 1.0}
MODULE = "benchmarks.flower_stragglers_side"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """points: seconds since the first version and accuracy, for each version. updates: that they are made of."""

    points: list[tuple[float, float]]
    updates: int

    @property
    def target_s(self) -> float:
        """Time of the first version with the target accuracy; infinite without one."""
        return next((at_s for at_s, accuracy in self.points if accuracy >= TARGET), math.inf)

    def accuracy_at(self, seconds: float) -> float:
        """Accuracy of the newest version at a time."""
        return next(accuracy for at_s, accuracy in reversed(self.points) if at_s <= seconds)


def run(python: Path, folder: Path, quick: bool) -> dict[str, list[Curve]]:
    """Curves of each arrangement, by seed. python: of the environment with Flower."""
    new_app("pytorch_msg_api", folder)
    os.environ |= {
        "CIFAR10_NPZ": str(_write_digits(folder / "digits.npz")),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_HOME": str(folder / "flwr"),
    }
    fractions = dict(list(FRACTIONS.items())[:1]) if quick else FRACTIONS
    seconds = RUN_S / 2 if quick else RUN_S
    figures: dict[str, list[Curve]] = {name: [] for name in (OURS, *fractions)}
    for seed in range(1 if quick else SEEDS):
        slow = random.Random(seed).sample(range(CLIENTS), STRAGGLERS)  # noqa: S311  (a choice of clients)
        delays_s = [DELAY_S * (FACTOR if client in slow else 1) for client in range(CLIENTS)]
        os.environ["PARTITION_DELAYS_S"] = ",".join(map(str, delays_s))
        run_folder = _served(Flower(python), folder, seed, seconds)
        figures[OURS].append(_curve(python, folder, "recorded", run_folder))
        for name, fraction in fractions.items():
            of_run = (seed, CLIENTS, fraction, LEARNING_RATE, seconds)
            figures[name].append(_curve(python, folder, "synchronous", *of_run))
    return figures


def _write_digits(file: Path) -> Path:
    """Digits as images of 32x32 pixels in three colours, in the format of `flwr_datasets` in the tests."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    grey = (digits.images[order] * 15).astype(np.uint8).repeat(4, axis=1).repeat(4, axis=2)
    images, labels = grey[..., None].repeat(3, axis=3), digits.target[order]
    train, test = slice(TRAINING_IMAGES), slice(TRAINING_IMAGES, None)
    np.savez(file, x_train=images[train], y_train=labels[train], x_test=images[test], y_test=labels[test])
    return file


def _served(flower: Flower, folder: Path, seed: int, seconds: float) -> str:
    """Run the server and the clients for a time. Returns the directory of the run."""
    app = ("--flower", "quick.client_app:app", "--threads", "1")
    directory = f"run-{seed}"
    method = ("--policy", "fedbuff", "--k", str(K), "--lr", str(LEARNING_RATE), "--rounds", "100000")
    stored = ("--run.directory", directory, "--run.keep-updates", "--evaluate-every", "100000")
    with ExitStack() as stack:
        server = flower.server(stack, folder, *app, *method, *stored, "--clients", str(CLIENTS), "--seed", str(seed))
        address = fact_of(server)["address"]
        for client in range(CLIENTS):
            own = ("--num-partitions", str(CLIENTS), "--client.durability", "off")
            flower.client(stack, folder, address, client, *app, *own)
        with RecordedRun(folder / directory) as run:
            while not run.database.last_version():
                time.sleep(0.05)
        time.sleep(seconds)
        server.terminate()
        server.wait()
    return directory


def _curve(python: Path, folder: Path, *arguments: object) -> Curve:
    path = os.pathsep.join((*map(str, SOURCES), str(HERE / "stub"), str(folder)))
    done = subprocess.run(
        [str(python), "-m", MODULE, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{MODULE} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return Curve(**json.loads(done.stdout.splitlines()[-1]))


def markdown(figures: dict[str, list[Curve]]) -> str:
    """The figures as a table."""
    seconds = RUN_S if len(figures[OURS]) > 1 else RUN_S / 2
    rows = [
        (
            name,
            report.median_and_spread([curve.target_s for curve in curves], ".1f"),
            report.median_and_spread(
                [curve.target_s / ours.target_s for curve, ours in zip(curves, figures[OURS], strict=True)], ".1f"
            ),
            report.median_and_spread([curve.accuracy_at(EARLY_S) for curve in curves]),
            report.median_and_spread([curve.accuracy_at(seconds) for curve in curves]),
            report.median_and_spread([len(curve.points) for curve in curves], ".0f"),
            report.median_and_spread([curve.updates for curve in curves], ".0f"),
        )
        for name, curves in figures.items()
    ]
    headings = (
        "run",
        f"to accuracy {TARGET}, s",
        "over FedBuff",
        f"accuracy after {EARLY_S:.0f} s",
        f"after {seconds:.0f} s",
        "versions",
        "updates",
    )
    return (
        f"{CLIENTS} clients, of which {STRAGGLERS} wait {DELAY_S * FACTOR:.0f} s before each training and the others "
        f"{DELAY_S} s; digits, {TRAINING_IMAGES} training images in equal shares, one local epoch, Adam with rate "
        f"{LEARNING_RATE}; K = {K}; flwr {VERSIONS[-1]}; median and spread of {len(figures[OURS])} seeds, which draw "
        "the stragglers and the first weights. inf: not reached.\n\n" + report.table(headings, rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--environment", type=Path, default=ENVIRONMENT, help="where Flower is, or is put: default %(default)s"
    )
    parser.add_argument("--quick", action="store_true", help="one seed, half of the time, one kind of rounds")
    arguments = parser.parse_args()
    python = environment_of(arguments.environment, VERSIONS[-1])
    with tempfile.TemporaryDirectory(prefix="unstale-bench-") as name:
        print(markdown(run(python, Path(name), arguments.quick)))


if __name__ == "__main__":
    main()
