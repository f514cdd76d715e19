"""Plots a partition. Imports matplotlib, so commands import this module only to draw.

Legend: N clients, C classes.
"""

from pathlib import Path

import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from unstale.cli.tables import FEW, MOST
from unstale.report import drawing, files
from unstale.training.partition import Indices

IN_ORDER_MAX = 100  # more clients are sorted, because their columns are too narrow to distinguish
WIDTH_INCHES_MIN, WIDTH_INCHES_MAX = 8.0, 12.0
INCHES_PER_CLIENT = 0.1
TICKS_MAX = 25


def draw(counts_NC: Indices, title: str, file: Path) -> None:
    """Draw the examples of each client, above their class shares, into a PNG file. Raises UserError if it cannot write.

    counts_NC: examples of class c at client i; each client has at least one.
    """
    clients, classes = counts_NC.shape
    order = _order(counts_NC)
    sizes_N = counts_NC.sum(axis=1)[order]
    shares_CN = (counts_NC / counts_NC.sum(axis=1, keepdims=True))[order].T
    width = min(max(WIDTH_INCHES_MIN, clients * INCHES_PER_CLIENT), WIDTH_INCHES_MAX)
    class_height = min(max(2.5, classes * 0.3), 8.0)
    with files.figure(file, (width, class_height + 2.5), title) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1.5, class_height])
        top.stairs(sizes_N, np.arange(clients + 1) - 0.5, fill=True, color="0.55")
        median = float(np.median(sizes_N))
        top.axhline(median, color=drawing.INK, linewidth=1, linestyle="--", label=f"median {median:,.10g}")
        top.legend(loc="upper right")
        top.set_ylim(bottom=0, top=1.3 * float(sizes_N.max()))  # room for the legend
        top.set_ylabel("examples")
        top.yaxis.set_major_formatter("{x:,.0f}")
        blues = LinearSegmentedColormap.from_list("", np.array([FEW, MOST]) / 255)
        image = bottom.imshow(
            np.ma.masked_equal(shares_CN, 0),
            aspect="auto",
            cmap=blues,
            interpolation="nearest",  # edges stay sharp
            origin="lower",
            vmin=0,
            vmax=1,
        )
        bottom.grid(visible=False)
        drawing.colour_bar(bottom, image, "share of the client's examples\n(white: none)")
        is_sorted = clients > IN_ORDER_MAX
        bottom.set_xlabel("clients, sorted by their most common class" if is_sorted else "client")
        bottom.set_ylabel("class")
        bottom.set_yticks(_ticks(classes))
        if not is_sorted:
            bottom.set_xticks(_ticks(clients))


def _order(counts_NC: Indices) -> Indices:
    """Return the clients from left to right: by id, or by their most common class and its share."""
    if len(counts_NC) <= IN_ORDER_MAX:
        return np.arange(len(counts_NC))
    common_N = counts_NC.argmax(axis=1)
    return np.lexsort((-counts_NC.max(axis=1) / counts_NC.sum(axis=1), common_N))


def _ticks(number: int) -> Indices:
    """Return at most `TICKS_MAX` evenly spaced positions from 0, below a number."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, number) if number / step <= TICKS_MAX)
    return np.arange(0, number, step)
