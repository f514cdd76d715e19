"""The tables of docs/metrics.md, from the catalogue."""

import re
from collections.abc import Sequence
from pathlib import Path

from unstale.metrics.catalogue import CATALOGUE, CLIENT_CATALOGUE, INJECTOR_CATALOGUE, Metric

DOCUMENT = Path(__file__).parents[1] / "docs/metrics.md"
TABLES = {"metric": CATALOGUE, "client metric": CLIENT_CATALOGUE, "injector metric": INJECTOR_CATALOGUE}
"""Metrics by the heading of the first column."""


def with_tables(text: str) -> str:
    """The document with every table generated from the catalogue."""
    for head, metrics in TABLES.items():
        found = re.findall(rf"^\| {head} \|.*\n(?:\|.*\n)+", text, flags=re.MULTILINE)
        assert len(found) == 1, f"{DOCUMENT.name} has {len(found)} tables of {head}s"
        text = text.replace(found[0], table(head, metrics))
    return text


def table(head: str, metrics: Sequence[Metric]) -> str:
    """A row per metric."""
    rows = [f"| {head} | kind | labels | help |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(rows) + "\n"
