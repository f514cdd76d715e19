"""The shares of a partition as a picture. Imported only when one is drawn: it needs matplotlib.

Legend: N clients, C classes.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from unstale.cli.partition import FEW, MOST
from unstale.training.partition import Indices

IN_ORDER_MAX = 100  # more clients than that are sorted: one by one they could not be told apart
INCHES_MIN, INCHES_MAX = 8.0, 12.0
INCHES_A_CLIENT = 0.1
DOTS_PER_INCH = 150
TICKS_MAX = 25


def draw(counts_NC: Indices, title: str, file: Path) -> None:
    """Draw how many examples each client holds, and below it of which classes, into a PNG file.

    counts_NC: examples of class c at client i, every client with one or more. Raises OSError.
    """
    clients, classes = counts_NC.shape
    order = _order(counts_NC)
    sizes_N = counts_NC.sum(axis=1)[order]
    shares_CN = (counts_NC / counts_NC.sum(axis=1, keepdims=True))[order].T
    width = min(max(INCHES_MIN, clients * INCHES_A_CLIENT), INCHES_MAX)
    below = min(max(2.5, classes * 0.3), 8.0)
    figure = Figure(figsize=(width, below + 2.5), dpi=DOTS_PER_INCH, layout="constrained")
    figure.suptitle(title, wrap=True)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1.5, below])
    _draw_sizes(top, sizes_N)
    colours = LinearSegmentedColormap.from_list(
        "", [[part / 255 for part in colour] for colour in (FEW, MOST)]
    )
    image = bottom.imshow(
        np.ma.masked_equal(shares_CN, 0),
        aspect="auto",
        cmap=colours,
        interpolation="nearest",  # edges stay sharp
        origin="lower",
        vmin=0,
        vmax=1,
    )
    figure.colorbar(image, ax=bottom, label="share of the client's examples\n(white: none)")
    is_sorted = clients > IN_ORDER_MAX
    bottom.set_xlabel("clients, sorted by their most common class" if is_sorted else "client")
    bottom.set_ylabel("class")
    bottom.set_yticks(_ticks(classes))
    if not is_sorted:
        bottom.set_xticks(_ticks(clients))
    figure.savefig(file, format="png")


def _order(counts_NC: Indices) -> Indices:
    """The clients from left to right: by id; very many by their most common class, and by how much it is of theirs."""
    if len(counts_NC) <= IN_ORDER_MAX:
        return np.arange(len(counts_NC))
    common_N = counts_NC.argmax(axis=1)
    return np.lexsort((-counts_NC.max(axis=1) / counts_NC.sum(axis=1), common_N))


def _draw_sizes(axes: Axes, sizes_N: Indices) -> None:
    edges = np.arange(len(sizes_N) + 1) - 0.5
    axes.stairs(sizes_N, edges, fill=True, color="0.55")
    median = float(np.median(sizes_N))
    axes.axhline(median, color="black", linewidth=1, linestyle="--", label=f"median {median:,.10g}")
    axes.legend(loc="upper right", fontsize="small")
    axes.set_ylim(bottom=0, top=1.3 * float(sizes_N.max()))  # room for the legend
    axes.set_ylabel("examples")
    axes.yaxis.set_major_formatter("{x:,.0f}")


def _ticks(count: int) -> Indices:
    """Few enough round positions below `count`."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, count) if count / step <= TICKS_MAX)
    return np.arange(0, count, step)
