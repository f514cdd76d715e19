"""The plot of a scenario preview. Separate from `scenario_text`, because it imports matplotlib."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from unstale.cli.scenario_text import delays, duration, legs
from unstale.cli.tables import MOST
from unstale.report import drawing, files
from unstale.report.content import count
from unstale.report.statistics import Floats
from unstale.toxics.preview import BINS, GroupSeen, Preview

GROUPS_MAX = 6  # one row of axes for each; more would not fit on a page
WIDE_RATIO = 300  # a delay axis with a larger ratio of its ends has ticks at powers of ten only
BIN_EDGES = 60  # of a histogram of delays
WIDTH_INCHES = 11.0


def draw(preview: Preview, title: str, file: Path) -> None:
    """Write a PNG file with delays and availability of the first `GROUPS_MAX` groups. Raises UserError."""
    groups = preview.groups[:GROUPS_MAX]
    has_gaps = any(min(map(min, group.available)) < 1 for group in groups)
    seconds = delays(groups)
    edges = np.geomspace(min(seconds, default=1.0) * 0.9, max(seconds, default=1.0) * 1.1, BIN_EDGES)
    with files.figure(file, (WIDTH_INCHES, 1.4 + 2.2 * len(groups)), title) as figure:
        widths = [1.0, 1.2] if has_gaps else [1.0]
        rows = figure.subplots(len(groups), len(widths), squeeze=False, sharex="col", width_ratios=widths)
        for row, group in zip(rows, groups, strict=True):
            row[0].set_title(f"{group.name}, {count(group.clients, 'client')}", fontsize="medium")
            _draw_delays(row[0], group, edges)
            if has_gaps:
                _draw_availability(row[1], group, preview)
        rows[-1, 0].set_xlabel("delay")
        if has_gaps:
            rows[-1, 1].set_xlabel(_time_label(preview))


def _draw_delays(axes: Axes, group: GroupSeen, edges: Floats) -> None:
    if not delays([group]):
        axes.text(0.5, 0.5, "no delays", transform=axes.transAxes, ha="center")
        axes.set(xticks=[], yticks=[])
        return
    for index, (leg, seconds, lost) in enumerate(legs(group)):
        positive = [second for second in seconds if second > 0]  # a logarithmic axis has no 0
        no_delay = ", no delay" if seconds and not positive else ""
        label = f"{leg}{no_delay}{f', {lost:.1%} lost' if lost else ''}"
        drawing.histogram(axes, np.histogram(positive, edges)[0] / max(len(seconds), 1), edges, index, label)
    axes.set_ylabel("share of messages")
    axes.legend(loc="upper left")
    axes.set_xscale("log")
    is_wide = edges[-1] > WIDE_RATIO * edges[0]
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if is_wide else (1.0, 2.0, 5.0), numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0, top=1.6 * max(axes.get_ylim()[1], 1e-3))  # space for the legend


def _draw_availability(axes: Axes, group: GroupSeen, preview: Preview) -> None:
    available = np.array(group.available, dtype=float)
    axes.imshow(
        available,
        aspect="auto",
        cmap=ListedColormap([[1.0, 1.0, 1.0], [part / 255 for part in MOST]]),
        interpolation="nearest",  # sharp edges
        origin="lower",
        vmin=0,
        vmax=1,
        extent=(0, BINS if preview.by_rounds and not preview.by_time else preview.seconds, 0, len(available)),
    )
    axes.grid(visible=False)
    axes.set_title(f"{available.mean():.0%} connected", fontsize="medium")
    axes.set_ylabel("client")
    ticks = sorted({0, len(available) // 2, len(available) - 1})
    axes.set_yticks([tick + 0.5 for tick in ticks], [f"{group.client_ids[tick]}" for tick in ticks])


def _time_label(preview: Preview) -> str:
    if preview.by_rounds and not preview.by_time:
        return "round (blue: the client is connected)"
    rounds = f", divided into {BINS} rounds" if preview.by_rounds else ""
    return f"seconds of the scenario{rounds} (blue: the client is connected)"
