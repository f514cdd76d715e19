"""Accuracy on a class of mostly stale clients, over sockets, under each compensation of staleness.

A hundred clients with unlike shares of MNIST (`dirichlet-client`, alpha 0.1) train lenet_gi, ten a round in turn; the
ten with the most examples of class 5 are 40 rounds stale (`staleness-40`). The accuracy on class 5 is compared for
direct aggregation, weighted aggregation, first-order compensation and `auto`. The scale fits one machine and is not
the paper's.

    python -m benchmarks.compensation_run --file mnist.npz --out folder [--seeds 3] [--rounds 200]
"""

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import nan
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from benchmarks import machine, processes, report
from benchmarks.compensation_plots import draw_errors_by_round

CLIENTS, AT_A_TIME, LABEL = 100, 10, 5
METHODS: dict[str, Sequence[str]] = {
    "direct": ("--policy", "direct"),
    "weighted": ("--policy", "weighted"),
    "first-order": ("--policy", "direct", "--compensator", "first-order"),
    "auto": ("--policy", "direct", "--compensator", "auto"),
}
STYLES = {"direct": "-", "weighted": "-", "first-order": ":", "auto": "--"}
LAST = 5  # evaluations whose mean is the final accuracy


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run. accuracy, of_class: by evaluated version. methods: updates by their replacement.
    errors: by method, version, L1 and cosine.
    """

    method: str
    seed: int
    seconds: float
    versions: list[int]
    accuracy: list[float]
    of_class: list[float]
    methods: dict[str, int]
    errors: dict[str, list[tuple[int, float, float]]]

    @property
    def final(self) -> float:
        return fmean(self.of_class[-LAST:])


def run(method: str, seed: int, options: argparse.Namespace) -> Run:
    """Run once over sockets."""
    with tempfile.TemporaryDirectory() as name:
        folder, started_s = Path(name), time.perf_counter()
        processes.run(
            folder,
            [
                *("--data", "npz", "--data.path", str(options.file.resolve()), "--model", "lenet_gi"),
                *("--partition", "dirichlet-client", "--partition.alpha", "0.1"),
                *("--partition.budget", str(options.examples), "--epochs", "5", "--batch-size", "1000000"),
                *("--lr", str(options.rate), "--clients", str(CLIENTS), "--rounds", str(options.rounds)),
                *("--seed", str(seed), "--scenario", "staleness-40", "--trigger", "sync"),
                *("--selector", "round-robin", "--selector.size", str(AT_A_TIME)),
                *("--evaluate-every", "5", "--device", "cpu", "--address", "tcp://127.0.0.1:0"),
                *("--set", "server.http_address=null", "--set", "server.lease_s=120", "--run", "run", "--json"),
                *METHODS[method],
            ],
            clients=CLIENTS,
            of_the_clients=("--data.path", str(options.file.resolve())),
            limit_s=3600,
        )
        seconds = time.perf_counter() - started_s
        with sqlite3.connect(folder / "run" / "run.db") as database:
            measured = database.execute(
                "SELECT version, accuracy, class_accuracy FROM evaluations ORDER BY version"
            ).fetchall()
            fetched = database.execute(
                "SELECT version, compensation FROM rounds WHERE compensation IS NOT NULL"
            ).fetchall()
        database.close()
    methods: dict[str, int] = {}
    errors: dict[str, list[tuple[int, float, float]]] = {}
    for version, text in fetched:
        fields = json.loads(text)
        for update in fields["updates"]:
            methods[update["method"]] = methods.get(update["method"], 0) + 1
        for error in fields["errors"]:
            errors.setdefault(error["method"], []).append((version, error["l1"], error["cosine"]))
    return Run(
        method=method,
        seed=seed,
        seconds=seconds,
        versions=[version for version, _, _ in measured],
        accuracy=[accuracy for _, accuracy, _ in measured],
        of_class=[json.loads(classes)[LABEL] for _, _, classes in measured],
        methods=methods,
        errors=errors,
    )


def table(runs: Sequence[Run]) -> str:
    """A row per method: final accuracy of the class and of all, duration, replacements of stale updates."""
    rows = []
    for method in METHODS:
        own = [one for one in runs if one.method == method]
        if own:
            replaced = {key: sum(one.methods.get(key, 0) for one in own) for one in own for key in one.methods}
            rows.append(
                [
                    method,
                    _mean([one.final for one in own]),
                    _mean([fmean(one.accuracy[-LAST:]) for one in own]),
                    ", ".join(f"{one.final:.3f}" for one in own),
                    report.median_and_spread([one.seconds for one in own], ".0f"),
                    ", ".join(f"{n} {key}" for key, n in sorted(replaced.items()) if key != "none") or "-",
                ]
            )
    headings = ["method", "class 5", "all classes", "class 5 by seed", "seconds", "updates replaced"]
    return report.table(headings, rows)


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f} ± {stdev(values) if len(values) > 1 else 0:.3f}"


def draw(runs: Sequence[Run], file: Path) -> None:
    """Draw the accuracy of the class over rounds: mean and range over the seeds, each evaluation averaged with the one
    before, because clients participate in turn, and a model favours the data of the last ones.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for method in METHODS:
        own = [one for one in runs if one.method == method]
        if not own:
            continue
        smooth = [[fmean(pair) for pair in pairwise(one.of_class)] for one in own]
        curves = list(zip(*smooth, strict=True))
        versions = own[0].versions[1:]
        (line,) = axes.plot(versions, [fmean(values) for values in curves], STYLES[method], label=method, linewidth=1.8)
        axes.fill_between(
            versions,
            [min(values) for values in curves],
            [max(values) for values in curves],
            color=line.get_color(),
            alpha=0.15,
            linewidth=0,
        )
    axes.set(xlabel="round", ylabel="accuracy on class 5", ylim=(0, 1), xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(
        "Class 5, whose ten largest holders are 40 rounds stale\n(mean and range over seeds, of two evaluations each)",
        fontsize=10,
    )
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def draw_errors(runs: Sequence[Run], file: Path) -> None:
    """Draw errors of the estimates of `auto` and of the unchanged updates over rounds, in its first run."""
    fetched = next((one.errors for one in runs if one.method == "auto" and one.errors), None)
    if fetched is None:
        return
    rounds = sorted({version for found in fetched.values() for version, _, _ in found})
    l1, cosine = (
        {
            method: np.array(
                [fmean([one[measure] for one in found if one[0] == version] or [nan]) for version in rounds]
            )
            for method, found in fetched.items()
        }
        for measure in (1, 2)
    )
    title = "E1 of estimates and E2 of the stale updates themselves over rounds, as later updates tell"
    draw_errors_by_round(rounds, l1, cosine, title, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True, help="MNIST in a .npz of four arrays")
    parser.add_argument("--out", type=Path, required=True, help="folder for runs.jsonl, table and plot")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--examples", type=int, default=128, help="that a client holds at most")
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    options = parser.parse_args()
    head = machine.description(f"python -m benchmarks.compensation_run {' '.join(sys.argv[1:])}")
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / f"runs_{options.rounds}_{options.examples}_{options.rate:g}.jsonl"
    runs = [Run(**json.loads(line)) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(one.method, one.seed) for one in runs}
    for seed in range(options.seeds):
        for method in options.methods:
            if (method, seed) not in done:
                runs.append(run(method, seed, options))
                with kept.open("a") as file:
                    file.write(json.dumps(asdict(runs[-1])) + "\n")
                print(f"{method}, seed {seed}: class 5 {runs[-1].final:.3f}, {runs[-1].seconds:.0f} s", flush=True)
    text = "\n\n".join(
        [
            head,
            f"{options.rounds} rounds, {CLIENTS} clients with at most {options.examples} examples, {AT_A_TIME} a "
            f"round, rate {options.rate:g}, 5 full-batch steps; accuracy is the mean of the last {LAST} evaluations, ± "
            "standard deviation over seeds.",
            table(runs),
        ]
    )
    (options.out / "table.md").write_text(text + "\n")
    draw(runs, options.out / "class_accuracy.png")
    draw_errors(runs, options.out / "errors.png")
    print(text)


if __name__ == "__main__":
    main()
