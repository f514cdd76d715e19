"""Deterministic synthetic records of presets: near published numbers where there are any, else plausible."""

from collections.abc import Iterable
from math import exp
from typing import Any

from unstale.seeds import Generator, Stream, stream
from unstale_papers.comparison import Comparison
from unstale_papers.preset import Cell, Preset
from unstale_papers.presets.registry import make
from unstale_papers.record import Record

EVALUATIONS = 40


def comparison(name: str, seeds: Iterable[int] = range(3), *, left_out: Iterable[tuple[str, int]] = ()) -> Comparison:
    """A preset's comparison with records of all its cells. left_out: cells and seeds without one."""
    preset = make(name)
    absent = set(left_out)
    return Comparison(
        preset=preset,
        records={
            (cell.name, seed): record(preset, cell, number, seed)
            for number, cell in enumerate(preset.cells)
            for seed in seeds
            if (cell.name, seed) not in absent
        },
    )


def record(preset: Preset, cell: Cell, number: int, seed: int) -> Record:
    """number: index of the cell in its preset."""
    rng = stream(seed, Stream.INVERSION, 0, number)
    if cell.measurement != "run":
        return Record(found=found(preset, cell, rng), seconds=60.0)
    end = ends_at(cell, rng)
    rounds = cell.settings.rounds
    versions = [round(rounds * place / EVALUATIONS) for place in range(EVALUATIONS + 1)]
    accuracies = [
        max(0.01, end * (1 - exp(-4 * version / rounds)) / (1 - exp(-4)) + 0.01 * rng.normal()) for version in versions
    ]
    return Record(
        version_E=versions,
        time_E=[float(version) for version in versions],
        accuracy_E=accuracies,
        loss_E=[2.3 - 2 * accuracy for accuracy in accuracies],
        class_accuracy_EC=[[max(0.0, accuracy - 0.02 * label) for label in range(10)] for accuracy in accuracies],
        training_loss_R=[2.3 - 1.5 * end * place / 50 for place in range(50)],
        staleness_R=[float(cell.settings.trigger.k or 1) / 8 + abs(rng.normal()) for _ in range(50)],
        counted_R=[max(1, round((cell.settings.trigger.k or 4) / 4 + rng.normal())) for _ in range(50)],
        heavy_R=[max(0, round(3 + 1.2 * rng.normal())) for _ in range(50)],
        client_accuracy_N=[min(1.0, max(0.0, end + 0.17 * rng.normal())) for _ in range(100)],
        errors=[
            (version, method, base * (1 + version / rounds) + 0.2 * abs(rng.normal()), 0.3)
            for version in versions[1:]
            for method, base in (("none", 9.0), ("gradient-inversion", 6.0))
        ],
        found={"training_loss": [[version, 2.4 - 2 * end * version / rounds] for version in versions[5::5]]},
        seconds=600.0,
        steps=1000,
        model_digest="ab" * 32,
    )


def ends_at(cell: Cell, rng: Generator) -> float:
    """The final accuracy of a cell."""
    if "final accuracy" in cell.published:
        return max(0.02, cell.published["final accuracy"].value + 0.015 * rng.normal())
    if "client accuracy mean" in cell.published:
        return cell.published["client accuracy mean"].value / 100 + 0.01 * rng.normal()
    return 0.6 + 0.1 * rng.random()


def found(preset: Preset, cell: Cell, rng: Generator) -> dict[str, Any]:
    """The results of a measurement other than a run."""
    numbers: dict[str, Any] = {
        name: cell.published[name].value * (1 + 0.05 * rng.normal()) if name in cell.published else rng.random()
        for name in preset.measures
    }
    step = 10 * rng.random() + 1
    numbers["curves"] = {
        curve.shows: {"x": "iteration", "points": [(place, step * exp(-place / 20) + 0.1) for place in range(0, 61, 5)]}
        for curve in preset.curves
    }
    if cell.measurement == "loss surface":
        numbers["surface"] = [
            [2 + (a / 10 - 1) ** 2 + step * (b / 10 - 1) ** 2 / 10 for a in range(21)] for b in range(21)
        ]
    return numbers
