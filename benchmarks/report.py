"""Figures as Markdown."""

import statistics
from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded so that it also reads as text. The first column is to the left, others to the right."""
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        padded = [cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]
        return f"| {' | '.join(padded)} |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join((line(headings), line(rule), *map(line, rows)))


def median_and_spread(values: Sequence[float], spec: str = ".2f") -> str:
    """`0.71 (0.65 to 0.80)`: median, smallest and largest."""
    return f"{statistics.median(values):{spec}} ({min(values):{spec}} to {max(values):{spec}})"


def megabytes(size_bytes: int | None) -> str:
    """In units of 10^6 bytes, or a dash if unknown."""
    return "-" if size_bytes is None else f"{size_bytes / 1e6:,.0f} MB"
