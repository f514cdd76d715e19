"""What the clients of a scenario see, as a picture. Imported only when one is drawn: it needs matplotlib."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from unstale.cli.partition import MOST
from unstale.cli.scenario import axis, duration, legs
from unstale.toxics.preview import BINS, GroupSeen, Preview

GROUPS_MAX = 6  # more would not fit
STYLES = (("#0072b2", "-"), ("#d55e00", "-"), ("#009e73", "--"))  # told apart by everybody: Okabe and Ito
WIDE = 300  # longest over shortest time from where on ticks at powers of ten will do
EDGES = 60  # of a histogram
INCHES = 11.0
DOTS_PER_INCH = 150


def draw(seen: Preview, title: str, file: Path) -> None:
    """Draw the distribution of delays of each group, and beside it who is there when, into a PNG file.

    Of many groups the first are drawn. Raises OSError.
    """
    groups = seen.groups[:GROUPS_MAX]
    figure = Figure(figsize=(INCHES, 1.4 + 2.2 * len(groups)), dpi=DOTS_PER_INCH, layout="constrained")
    figure.suptitle(title, wrap=True)
    comes_and_goes = any(min(map(min, group.there)) < 1 for group in groups)
    columns = (
        [1.0, 1.2] if comes_and_goes else [1.0]
    )  # where nobody ever leaves there is nothing to see of it
    rows = figure.subplots(
        len(groups), len(columns), squeeze=False, sharex="col", gridspec_kw={"width_ratios": columns}
    )
    every = [second for group in groups for _, part, _ in legs(group) for second in part if second > 0]
    edges = np.geomspace(min(every, default=1.0) * 0.9, max(every, default=1.0) * 1.1, EDGES)
    for (left, *right), group in zip(rows, groups, strict=True):
        left.set_title(
            f"{group.name}, {group.clients:,} client{'s' * (group.clients > 1)}", fontsize="medium"
        )
        _draw_delays(left, group, edges)
        for axes in right:
            _draw_presence(axes, group, seen)
    rows[-1, 0].set_xlabel("how long")
    if comes_and_goes:
        rows[-1, 1].set_xlabel(_x_label(seen))
    figure.savefig(file, format="png")


def _draw_delays(axes: Axes, group: GroupSeen, edges: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> None:
    if not any(second > 0 for _, seconds, _ in legs(group) for second in seconds):
        axes.text(0.5, 0.5, "every message comes at once", transform=axes.transAxes, ha="center")
        axes.set(xticks=[], yticks=[])
        return
    for (leg, seconds, lost), (colour, line) in zip(legs(group), STYLES, strict=True):
        longer = [second for second in seconds if second > 0]
        words = leg + (", at once" if seconds and not longer else "") + (f", {lost:.1%} lost" if lost else "")
        shares = np.histogram(longer, edges)[0] / max(len(seconds), 1)
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.2)
        axes.stairs(shares, edges, color=colour, linestyle=line, label=words)
    axes.set_ylabel("share of messages")
    axes.legend(loc="upper left", fontsize="small", frameon=False, ncols=1)
    axes.set_xscale("log")
    is_wide = edges[-1] > WIDE * edges[0]
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if is_wide else (1.0, 2.0, 5.0), numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0, top=1.6 * max(axes.get_ylim()[1], 1e-3))  # room for the legend


def _draw_presence(axes: Axes, group: GroupSeen, seen: Preview) -> None:
    colour = [part / 255 for part in MOST]
    there = np.array(group.there, dtype=float)
    axes.imshow(
        there,
        aspect="auto",
        cmap=ListedColormap([[1.0, 1.0, 1.0], colour]),
        interpolation="nearest",  # edges stay sharp
        origin="lower",
        vmin=0,
        vmax=1,
        extent=(0, seen.seconds if seen.by_time or not seen.by_rounds else BINS, 0, len(there)),
    )
    axes.set_title(f"{there.mean():.0%} there", fontsize="medium")
    axes.set_ylabel("client")
    count = len(group.played)
    places = sorted({0, count // 2, count - 1})
    axes.set_yticks([place + 0.5 for place in places], [f"{group.played[place]}" for place in places])


def _x_label(seen: Preview) -> str:
    if seen.by_rounds and not seen.by_time:
        return "round (blue: the client is there)"
    rounds = f", {axis(seen).rpartition(', and ')[2]} in it" if seen.by_rounds else ""
    return f"seconds of the scenario{rounds} (blue: the client is there)"
