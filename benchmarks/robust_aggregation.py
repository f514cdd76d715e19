"""Robust aggregation against Byzantine clients: test accuracy by defence, attack and share of attackers.

20 clients train `digits_cnn` on the bundled digits in virtual time, K = 10 of 20, 50 rounds, all else as by default.
Not part of `make bench`. A cell in the CSV is not computed again, so that an interrupted run resumes.

    python -m benchmarks.robust_aggregation [--seeds 3]   # compute the cells that are missing, then draw
    python -m benchmarks.robust_aggregation --seeds 0     # draw only
"""

import argparse
import csv
import statistics
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.report import table

RESULTS = Path(__file__).parent / "results" / "robust_aggregation.csv"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "robust-aggregation.png"

CLIENTS, K, ROUNDS, EVALUATE_EVERY = 20, 10, 50, 10
LAST = 3
"""Evaluations whose mean is the accuracy of a run."""

NORM_MAX, CLIP_NORM = 20.0, 5.0
"""Norm bound of deltas over their learning rate. Honest ones: median 2, maximum 16, largest in the first rounds."""

PARTITIONS = {"iid": "IID", "dirichlet": "Dirichlet 0.3"}

DEFENCES: dict[str, dict[str, Any]] = {
    "none (fedavg)": {"policy": {"name": "fedavg"}},
    "none (fedasync)": {"policy": {"name": "fedasync"}},
    "norm_max adaptive": {"policy": {"name": "fedavg"}, "server": {"norm_max": "adaptive"}},
    f"norm_max {NORM_MAX:g}": {"policy": {"name": "fedavg"}, "server": {"norm_max": NORM_MAX}},
    f"clip_norm {CLIP_NORM:g}": {"policy": {"name": "fedavg", "clip_norm": CLIP_NORM}},
    "trimmed-mean": {"policy": {"name": "trimmed-mean", "settings": {"trim": 0.3}}},
    "coordinate-median": {"policy": {"name": "coordinate-median"}},
    "geometric-median": {"policy": {"name": "geometric-median"}},
    "krum": {"policy": {"name": "krum", "settings": {"byzantine": 3}}},
    "multi-krum": {"policy": {"name": "multi-krum", "settings": {"byzantine": 3}}},
}

ATTACKS: dict[str, dict[str, Any]] = {
    "sign flip x 4": {"name": "sign-flip", "factor": 4.0},
    "scale x 1000": {"name": "scale", "factor": 1000.0},
    "noise x 10": {"name": "noise", "factor": 10.0},
    "label flip": {"name": "label-flip"},
}
ATTACKERS = (2, 4)
HONEST = "no attack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run. attackers: how many of the clients attack."""

    partition: str
    defence: str
    attack: str
    attackers: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one run. accuracy: mean of the last evaluations, on the test set. ended_early: an aborted run."""

    partition: str
    defence: str
    attack: str
    attackers: int
    seed: int
    accuracy: float
    accepted: int
    rejected: int
    ended_early: bool

    @property
    def cell(self) -> Cell:
        return Cell(**{field.name: getattr(self, field.name) for field in fields(Cell)})


def cells(seeds: int) -> Iterator[Cell]:
    """All of one seed before the next, so that a picture can be drawn early."""
    attacks = [(HONEST, 0), *((attack, count) for attack in ATTACKS for count in ATTACKERS)]
    for seed in range(seeds):
        for partition in PARTITIONS:
            for defence in DEFENCES:
                for attack, attackers in attacks:
                    yield Cell(partition=partition, defence=defence, attack=attack, attackers=attackers, seed=seed)


def measure(cell: Cell) -> Result:
    """Simulate one run."""
    from unstale.config.settings import Settings
    from unstale.errors import UserError
    from unstale.simulator.assemble import simulation

    attack = {} if cell.attack == HONEST else {**ATTACKS[cell.attack], "clients": cell.attackers}
    settings = Settings(
        seed=cell.seed,
        clients=CLIENTS,
        rounds=ROUNDS,
        evaluate_every=EVALUATE_EVERY,
        device="cpu",
        partition={"name": cell.partition},
        trigger={"name": "k-async", "k": K},
        attack=attack,
        simulation={"backend": "loop"},
        **{"server": {"norm_max": None}, **DEFENCES[cell.defence]},
    )
    accuracies: list[float] = []
    updates: dict[str, int] = {}
    ended_early = False
    try:
        run = simulation(settings, on_progress=lambda now: accuracies.append(now.accuracy))
        updates = run.run().updates
    except UserError as error:  # the run is aborted
        print(f"{cell}: {error}", file=sys.stderr, flush=True)
        ended_early = True
    return Result(
        **{field.name: getattr(cell, field.name) for field in fields(Cell)},
        accuracy=round(statistics.fmean(accuracies[-LAST:]), 4),
        accepted=updates.get("accepted", 0),
        rejected=updates.get("rejected", 0),
        ended_early=ended_early,
    )


def stored(path: Path) -> list[Result]:
    """The results in a CSV; none where there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Result(
                partition=row["partition"],
                defence=row["defence"],
                attack=row["attack"],
                attackers=int(row["attackers"]),
                seed=int(row["seed"]),
                accuracy=float(row["accuracy"]),
                accepted=int(row["accepted"]),
                rejected=int(row["rejected"]),
                ended_early=row["ended_early"] == "True",
            )
            for row in csv.DictReader(file)
        ]


def compute(path: Path, seeds: int) -> None:
    """Append the cells that a CSV lacks."""
    done = {result.cell for result in stored(path)}
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(field.name for field in fields(Result))
        for cell in cells(seeds):
            if cell not in done:
                writer.writerow(astuple(measure(cell)))
                file.flush()


def draw(results: list[Result], path: Path) -> None:
    """Mean accuracy over the seeds: a panel for each partition, a row for each defence, a column for each attack."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    columns = [(HONEST, 0), *((attack, count) for attack in ATTACKS for count in ATTACKERS)]
    heads = [HONEST if not count else f"{attack}\n{count / CLIENTS:.0%} attack" for attack, count in columns]
    figure, panels = plt.subplots(
        len(PARTITIONS), 1, figsize=(9.5, 8.6), sharex=True, layout="constrained", squeeze=False
    )
    for panel, (partition, title) in zip(panels[:, 0], PARTITIONS.items(), strict=True):
        means = [[mean_accuracy(results, partition, defence, *column) for column in columns] for defence in DEFENCES]
        image = panel.imshow(means, vmin=0.0, vmax=1.0, cmap="RdYlBu", aspect="auto")
        panel.set_title(f"{title} partition", loc="left", fontsize=11)
        panel.set_yticks(range(len(DEFENCES)), DEFENCES)
        panel.set_xticks(range(len(columns)), heads, fontsize=8)
        panel.tick_params(length=0, labelbottom=True)
        for spine in panel.spines.values():
            spine.set_visible(False)
        for row, accuracies in enumerate(means):
            for column, accuracy in enumerate(accuracies):
                dark = accuracy < 0.2 or accuracy > 0.85
                panel.text(
                    *(column, row, f"{100 * accuracy:.0f}"),
                    ha="center",
                    va="center",
                    fontsize=9,
                    color="white" if dark else "black",
                )
    figure.colorbar(image, ax=panels, label="test accuracy, mean over seeds", shrink=0.6)
    figure.savefig(path, dpi=130)


def mean_accuracy(results: list[Result], partition: str, defence: str, attack: str, attackers: int) -> float:
    """Mean over the seeds; nan without any."""
    chosen = (partition, defence, attack, attackers)
    of_seeds = [
        result.accuracy
        for result in results
        if (result.partition, result.defence, result.attack, result.attackers) == chosen
    ]
    return statistics.fmean(of_seeds) if of_seeds else float("nan")


def worst(results: list[Result]) -> str:
    """Accuracy of each defence without an attack, and under its worst attack at each share of attackers, in percent."""
    headings = ["defence"]
    for title in PARTITIONS.values():
        headings += [f"{title}: no attack", *(f"{count / CLIENTS:.0%}" for count in ATTACKERS)]
    rows = []
    for defence in DEFENCES:
        row = [defence]
        for partition in PARTITIONS:
            row.append(f"{100 * mean_accuracy(results, partition, defence, HONEST, 0):.1f}")
            for count in ATTACKERS:
                by_attack = {attack: mean_accuracy(results, partition, defence, attack, count) for attack in ATTACKS}
                attack = min(by_attack, key=by_attack.__getitem__)
                row.append(f"{100 * by_attack[attack]:.1f} ({attack})")
        rows.append(row)
    return table(headings, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    compute(arguments.results, arguments.seeds)
    results = stored(arguments.results)
    draw(results, arguments.picture)
    print(worst(results))


if __name__ == "__main__":
    main()
