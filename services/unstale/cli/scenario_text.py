"""Formats the preview of a scenario as text and as JSON."""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

import numpy as np

from unstale.toxics.preview import BINS, GroupSeen, Preview

SHADES = " ░▒▓█"  # share of connected clients: 0, up to 25 %, 50 %, 75 %, 100 %
BARS = " ▁▂▃▄▅▆▇█"
BARS_SHOWN = 24  # bins of a histogram
_LEFT_ALIGNED = (0, 2, 7)  # indexes of table columns


def legs(group: GroupSeen) -> Iterator[tuple[str, Sequence[float], float | None]]:
    """Yield name, durations in s and lost share of each part of a round trip: task, computation, update."""
    yield "task down", group.seen.down_s, group.seen.tasks_lost
    yield "computing", group.seen.computing_s, None
    yield "update up", group.seen.up_s, group.seen.updates_lost


def delays(groups: Sequence[GroupSeen]) -> list[float]:
    """Return all durations of `legs` that are not 0, in s."""
    return [second for group in groups for _, seconds, _ in legs(group) for second in seconds if second > 0]


def facts(preview: Preview) -> dict[str, Any]:
    """Return the preview for JSON output."""
    return {
        "seconds": preview.seconds,
        "groups": [
            {
                "name": group.name,
                "clients": group.clients,
                "stale_rounds": group.stale_rounds,
                "declined": group.seen.declined / group.seen.tasks,
                "legs": {leg: {"lost": lost, **_quantiles(seconds)} for leg, seconds, lost in legs(group)},
                "there": [round(share, 4) for share in group.share_available],
            }
            for group in preview.groups
        ],
    }


def _quantiles(seconds: Sequence[float]) -> dict[str, float | None]:
    levels = {"p10_s": 0.1, "median_s": 0.5, "p90_s": 0.9}
    return {key: float(np.quantile(seconds, level)) if seconds else None for key, level in levels.items()}


def lines(preview: Preview) -> Iterator[str]:
    """Yield the lines of the preview."""
    yield from _table(preview)
    for group in preview.groups:
        if group.stale_rounds is not None:
            yield f"{group.name}: updates are {group.stale_rounds} rounds late, in rounds that wait for all clients"
        if group.seen.declined:
            yield f"{group.name}: {group.seen.declined / group.seen.tasks:.0%} of the tasks are declined"
    if preview.by_time or preview.by_rounds:
        yield from _time_lines(preview)


def _table(preview: Preview) -> Iterator[str]:
    seconds = delays(preview.groups)
    edges = np.geomspace(min(seconds, default=1.0) * 0.999, max(seconds, default=1.0) * 1.001, BARS_SHOWN + 1)
    scale = f"{duration(edges[0])} to {duration(edges[-1])}, logarithmic" if seconds else ""
    heading = ("group", "clients", "", "10%", "median", "90%", "lost", scale)
    rows = [heading, *(row for group in preview.groups for row in _rows(group, edges))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if column in _LEFT_ALIGNED else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _rows(group: GroupSeen, edges: Any) -> Iterator[tuple[str, ...]]:
    head = (group.name, f"{group.clients:,}")
    for leg, seconds, lost in legs(group):
        quantiles = ("-" if quantile is None else duration(quantile) for quantile in _quantiles(seconds).values())
        yield (*head, leg, *quantiles, "" if lost is None else f"{lost:.1%}", _bars(seconds, edges))
        head = ("", "")


def _bars(seconds: Sequence[float], edges: Any) -> str:
    """Return a histogram of the durations that are not 0."""
    counts = np.histogram([second for second in seconds if second > 0], edges)[0].tolist()
    if not any(counts):
        return "at once" if seconds else ""
    return "".join(BARS[ceil(count / max(counts) * (len(BARS) - 1))] for count in counts)


def _time_lines(preview: Preview) -> Iterator[str]:
    """Yield a line for each group with the share of connected clients over time."""
    width = max(len(group.name) for group in preview.groups)
    shades = ", ".join(f"{shade} up to {quarter / 4:.0%}" for quarter, shade in enumerate(SHADES) if quarter)
    yield f"connected clients: {axis(preview)}; {shades}"
    for group in preview.groups:
        shares = group.share_available
        shaded = "".join(SHADES[ceil(share * (len(SHADES) - 1))] for share in shares)
        yield f"{group.name:<{width}} |{shaded}| {sum(shares) / len(shares):.0%}"


def axis(preview: Preview) -> str:
    """Return the range of time or rounds of the availability lines."""
    by_time, by_rounds = f"0 s to {preview.seconds:,.10g} s", f"{BINS} rounds"
    if preview.by_time and preview.by_rounds:
        return f"{by_time}, and {by_rounds}"
    return by_rounds if preview.by_rounds else by_time


def duration(seconds: float) -> str:
    """Return `0`, `350 us`, `12 ms`, `1.25 s` or `75 s`."""
    if seconds == 0:
        return "0"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds / 1e-6:.3g} us"
