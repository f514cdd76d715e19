"""Presets and records small enough to be computed on paper."""

from collections.abc import Mapping

from unstale.config import Settings
from unstale_papers.preset import Cell, Claim, Number, Preset
from unstale_papers.record import Record

SETTINGS = Settings()
Records = dict[tuple[str, int], Record]


def cell(name: str, **published: float) -> Cell:
    """name: `method=A beta=1`. published: final accuracies or rounds."""
    labels = dict(word.split("=") for word in name.split())
    names = {"accuracy": "final accuracy", "rounds": "rounds to 40 %", "speed": "speedup"}
    return Cell(
        labels=labels,
        settings=SETTINGS,
        published={names[what]: Number(value, f"{value:g}") for what, value in published.items()},
    )


def preset(
    *cells: Cell,
    claims: tuple[Claim, ...] = (),
    measures: tuple[str, ...] = ("final accuracy",),
    method: str = "method",
) -> Preset:
    return Preset(
        name="tiny",
        paper="FedHist",
        item="Table 0",
        title="Hand-made",
        cells=cells,
        measures=measures,
        rows=tuple(dict.fromkeys(axis for one in cells for axis in one.labels)),
        columns=(),
        sources=(),
        claims=claims,
        method=method,
    )


def ends_with(accuracy: float, at: int = 10) -> Record:
    return Record(version_E=[0, at], accuracy_E=[0.1, accuracy])


def runs(table: Mapping[str, list[float]]) -> Records:
    """Records with final accuracies by cell, for seeds 0, 1, ..."""
    return {
        (name, seed): ends_with(accuracy)
        for name, accuracies in table.items()
        for seed, accuracy in enumerate(accuracies)
    }
