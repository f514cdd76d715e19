"""Every policy in the K-async loop on MNIST: final accuracy, rounds to 90 %, staleness. Not part of `make bench`.

100 clients, Dirichlet 0.3, K = 10, latency Exp(1) for each task, so that a consumed update is on average N/K = 10
versions old, counted from 1. LeNet, 5 local steps of batch 32, learning rate 0.1 (0.02 where that
is too large), nothing else tuned for any policy. One process per cell; a stored cell is not computed again.

    python -m benchmarks.policies_on_mnist --path mnist.npz --store cells.jsonl [--workers 2] [--rounds 200]

Without --path the data set comes from its cache (`unstale data show mnist --download`).
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import nan
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.report import table

CLIENTS = 100
K = 10
EVALUATE_EVERY = 5
TARGET = 0.9
LAST = 10  # evaluations whose mean is the final accuracy, docs/methods/measures.md#accuracy
WARM_UP_ROUNDS = 100  # ten times N/K: before it few updates can be stale
NEEDS_TRAINING = ("fedprox", "moon", "scaffold")
LEARNING_RATES = {"fedar": 0.02, "gsgm": 0.02, "mifa": 0.02, "scaffold": 0.02}
"""Policies for which the usual rate of 0.1 is too large: they apply old updates as if they were fresh."""

ONLY_WITH_AVAILABILITY = {
    "fedavg-is": "weighs by the probability that a client is available",
    "fedavg-s": "takes S of those that are available",
}
"""Policies that this loop does not measure, and the reason."""


def cells(seeds: int) -> Iterator[tuple[str, int]]:
    """(policy, seed), seed by seed, so that a table can be read early."""
    from unstale.policies import names

    for seed in range(seeds):
        for policy in names():
            if policy not in ONLY_WITH_AVAILABILITY:
                yield policy, seed


def measure(policy: str, seed: int, rounds: int, path: str | None) -> dict[str, Any]:
    """Simulate one cell."""
    import torch

    from unstale.config.settings import Settings
    from unstale.coordinator import actions
    from unstale.errors import UserError
    from unstale.simulator.assemble import simulation

    torch.set_num_threads(1)
    settings = Settings(
        seed=seed,
        clients=CLIENTS,
        rounds=rounds,
        evaluate_every=EVALUATE_EVERY,
        device="cpu",
        model={"name": "lenet_28"},
        data={"name": "npz", "path": path} if path else {"name": "mnist"},
        partition={"alpha": 0.3},
        training={
            "name": policy if policy in NEEDS_TRAINING else "sgd",
            "learning_rate": LEARNING_RATES.get(policy, 0.1),
            "batch_size": 32,
            "steps": 5,
        },
        policy={"name": policy},
        trigger={"name": "k-async", "k": K},
    )
    accuracies: list[float] = []
    staleness: list[list[int]] = []

    def observe(_: object, following: Any) -> None:
        staleness.extend(
            [each.staleness + 1 for each in action.contributions]
            for action in following
            if isinstance(action, actions.ApplyRound)
        )

    diverged = False
    try:
        simulation(settings, on_progress=lambda now: accuracies.append(now.accuracy), observe=observe).run()
    except UserError as error:
        if not str(error).startswith("training diverges"):
            raise
        diverged = True
    reached = [index for index, accuracy in enumerate(accuracies) if accuracy >= TARGET]
    steady = [tau for consumed in staleness[WARM_UP_ROUNDS:] for tau in consumed]
    return {
        "policy": policy,
        "seed": seed,
        "rounds": rounds,
        "diverged": diverged,
        "final": statistics.fmean(accuracies[-LAST:]),
        "best": max(accuracies),
        "rounds_to_target": reached[0] * EVALUATE_EVERY if reached else None,
        "staleness": statistics.fmean(tau for consumed in staleness for tau in consumed),
        "staleness_steady": statistics.fmean(steady) if steady else nan,
        "accuracies": [round(accuracy, 4) for accuracy in accuracies],
    }


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All cells, stored ones without computation."""
    store = Path(arguments.store)
    done: dict[tuple[str, int], dict[str, Any]] = {}
    if store.exists():
        for line in store.read_text(encoding="utf-8").splitlines():
            cell = json.loads(line)
            if cell["rounds"] == arguments.rounds:
                done[cell["policy"], cell["seed"]] = cell

    def one(cell: tuple[str, int]) -> dict[str, Any]:
        if cell in done:
            return done[cell]
        command = [sys.executable, "-m", "benchmarks.policies_on_mnist", "--cell", *map(str, cell)]
        command += ["--rounds", str(arguments.rounds), *(["--path", arguments.path] if arguments.path else [])]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        with store.open("a", encoding="utf-8") as file:
            file.write(found)
        print(f"{cell[0]} seed {cell[1]}: final {json.loads(found)['final']:.4f}", file=sys.stderr, flush=True)
        made: dict[str, Any] = json.loads(found)
        return made

    with ThreadPoolExecutor(arguments.workers) as pool:
        return list(pool.map(one, cells(arguments.seeds)))


def markdown(found: list[dict[str, Any]]) -> str:
    """The table, best policies first, and a sentence on staleness."""
    by_policy: dict[str, list[dict[str, Any]]] = {}
    for cell in found:
        by_policy.setdefault(cell["policy"], []).append(cell)
    ranked = sorted(by_policy.items(), key=lambda item: -statistics.fmean(cell["final"] for cell in item[1]))
    rows = [
        (
            policy + (" (diverged)" if any(cell["diverged"] for cell in seeds) else ""),
            _mean_and_std([100 * cell["final"] for cell in seeds], ".2f"),
            _mean_and_std([100 * cell["best"] for cell in seeds], ".2f"),
            _rounds([cell["rounds_to_target"] for cell in seeds]),
            _mean_and_std([cell["staleness_steady"] for cell in seeds if cell["staleness_steady"]], ".2f"),
            f"{statistics.fmean(cell['staleness'] for cell in seeds if cell['staleness']):.2f}",
        )
        for policy, seeds in ranked
    ]
    headings = (
        "policy",
        "final accuracy, %",
        "best, %",
        f"rounds to {TARGET:.0%}",
        f"mean tau from round {WARM_UP_ROUNDS}",
        "of the whole run",
    )
    left_out = "; ".join(f"`{name}` {why}" for name, why in ONLY_WITH_AVAILABILITY.items())
    return (
        f"MNIST, LeNet ({CLIENTS} clients, Dirichlet 0.3, K = {K}, latency Exp(1)), {found[0]['rounds']} rounds,\n"
        f"{len(ranked[0][1])} seeds: mean ± standard deviation over them. Final: mean of the last {LAST} evaluations,\n"
        f"one every {EVALUATE_EVERY} rounds. tau: versions between a model and the use of its update, counted from 1;\n"
        f"N/K = {CLIENTS // K}. 5 steps of batch 32, the policies' defaults; learning rate 0.1, but where that\n"
        f"is too large: {', '.join(f'{name} {rate:g}' for name, rate in LEARNING_RATES.items())}.\n"
        f"Not in this loop: {left_out}.\n\n{table(headings, rows)}"
    )


def _mean_and_std(values: list[float], spec: str) -> str:
    return f"{statistics.fmean(values):{spec}} ± {statistics.stdev(values) if len(values) > 1 else nan:{spec}}"


def _rounds(reached: list[int | None]) -> str:
    numbers = [each for each in reached if each is not None]
    if not numbers:
        return "not reached"
    missed = f" ({len(reached) - len(numbers)} of {len(reached)} not)" if len(numbers) < len(reached) else ""
    return f"{statistics.fmean(numbers):.0f}{missed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--path", help="an .npz with x_train, y_train, x_test, y_test; default: the cache")
    parser.add_argument("--store", default="policies_on_mnist.jsonl", help="file of the cells that are done")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes at a time, of one thread each")
    parser.add_argument("--cell", nargs=2, metavar=("POLICY", "SEED"), help="one cell, as JSON")
    arguments = parser.parse_args()
    if arguments.cell:
        policy, seed = arguments.cell
        print(json.dumps(measure(policy, int(seed), arguments.rounds, arguments.path)))
        return
    found = run(arguments)
    print(
        f"# Policies in the K-async loop on MNIST\n\n{machine.description('python -m benchmarks.policies_on_mnist')}\n"
    )
    print(markdown(found))


if __name__ == "__main__":
    main()
