"""Intervals that texts name are those of the published numbers, rounded once."""

import csv
import re
from collections.abc import Iterator
from itertools import combinations
from math import exp, log
from pathlib import Path

import pytest

from unstale_papers.statistics import over_seeds

PAPERS = Path(__file__).parents[1]
TEXTS = (
    PAPERS / "README.md",
    PAPERS / "results/README.md",
    PAPERS / "unstale_papers/claims/headlines.yaml",
    PAPERS.parent / "docs/compensators.md",
)
INTERVAL = re.compile(r"\((?:95 % interval )?(-?\d+(?:\.\d+)?) to (-?\d+(?:\.\d+)?)[;)]")

Interval = tuple[float, float]


def of_rows(path: Path) -> Iterator[Interval]:
    """Of rows that have one, such as the claims."""
    with path.open(encoding="utf-8", newline="") as opened:
        for row in csv.DictReader(opened):
            if row.get("low") and row.get("high"):
                yield float(row["low"]), float(row["high"])


def of_pairs(path: Path) -> Iterator[Interval]:
    """Of differences and ratios of two cells with the same measure that differ in at most two labels."""
    by_cell: dict[tuple[str, ...], dict[str, float]] = {}
    with path.open(encoding="utf-8", newline="") as opened:
        for row in csv.DictReader(opened):
            labels = tuple(row[key] for key in row if key not in ("seed", "value", "why_not"))
            if row["value"]:
                by_cell.setdefault(labels, {})[row["seed"]] = float(row["value"])
    for one, other in combinations(by_cell, 2):
        if one[-1] == other[-1] and sum(a != b for a, b in zip(one, other, strict=True)) <= 2:
            seeds = sorted(by_cell[one].keys() & by_cell[other].keys())
            values = [(by_cell[one][seed], by_cell[other][seed]) for seed in seeds]
            yield from _interval([ours - theirs for ours, theirs in values])
            if all(min(pair) > 0 for pair in values):
                yield from ((exp(low), exp(high)) for low, high in _interval([log(a / b) for a, b in values]))
                yield from ((exp(low), exp(high)) for low, high in _interval([log(b / a) for a, b in values]))


def _interval(differences: list[float]) -> Iterator[Interval]:
    found = over_seeds(differences)
    if found is not None and found.low is not None and found.high is not None:
        yield found.low, found.high


@pytest.fixture(scope="module")
def published() -> list[Interval]:
    """Intervals in points and as shares, from both sides."""
    files = sorted((PAPERS / "results").rglob("*.csv"))
    found = [interval for path in files for interval in (of_pairs if path.stem.endswith("-seeds") else of_rows)(path)]
    found += [(-high, -low) for low, high in found]
    return [(scale * low, scale * high) for low, high in found for scale in (1, 100)]


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)
def test_every_interval_of_a_text_is_a_published_one(text: Path, published: list[Interval]) -> None:
    words = " ".join(text.read_text(encoding="utf-8").split())
    unknown = []
    for low, high in INTERVAL.findall(words):
        half = 0.5000001 * 10.0 ** -max(len(end.partition(".")[2]) for end in (low, high))
        if not any(abs(float(low) - a) <= half and abs(float(high) - b) <= half for a, b in published):
            unknown.append(f"{low} to {high}")
    assert unknown == []
