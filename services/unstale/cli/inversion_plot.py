"""What gradient inversion does, as pictures. Imported only when one is drawn: it needs matplotlib.

Every function takes plain arrays and writes one PNG file; each raises OSError where it cannot.

Legend: I iterations, S stalenesses, R repetitions (clients and seeds), T rounds, r examples; C, H, W of one image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

Numbers = NDArray[np.floating]

LINES = {
    "gradient-inversion": ("#0072b2", "-", "o"),
    "first-order": ("#d55e00", "--", "s"),
    "none": ("#009e73", ":", "^"),
}
"""By method: colour, line and marker; told apart by everybody (Okabe and Ito), and without colour."""

NAMES = {
    "none": "stale update as it is",
    "first-order": "first-order",
    "gradient-inversion": "gradient inversion",
}
OTHERS = (("#999999", "--", "D"), ("#cc79a7", "-.", "v"), ("#e69f00", ":", "P"))
"""Of methods that have no line of their own, in their order."""

POOL_LINES = (("#0072b2", "-"), ("#d55e00", "--"), ("#56b4e9", "-."), ("#009e73", ":"))
BAND = 0.18  # opacity
DOTS_PER_INCH = 150
EDGES = 25  # of a histogram
CURVES_MAX = 40  # more are drawn as their band alone
TILES_MAX = 60  # of a sheet; what comes behind is left out
IMAGES_ACROSS_MAX = 20
SHEET_INCHES, SHEET_INCHES_MIN = 11.0, 6.5
IMAGE_INCHES_MAX = 1.0
TITLE_INCHES, LABEL_INCHES, MARGIN = 0.5, 0.2, 0.12
GAP = 0.3  # between tiles, of an image
ENLARGED = 4  # so that the lines between images are thinner than a pixel of theirs: a quarter


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One example of a sheet. images: side by side, each [C, H, W] in [0, 1]. label: what is written above."""

    images: Sequence[Numbers]
    label: str


def draw_disparity(curves: Sequence[Numbers], file: Path) -> None:
    """Loss against iterations. curves: D before each iteration, [I] of each update."""
    figure, (axes,) = _figure(1, (7.0, 4.4))
    longest = max(map(len, curves))
    together_RI = np.full((len(curves), longest), np.nan)
    for row, curve in zip(together_RI, curves, strict=True):
        row[: len(curve)] = curve
        row[len(curve) :] = curve[-1]  # one that has ended stays where it is
    colour = LINES["gradient-inversion"][0]
    iterations = np.arange(longest)
    if len(curves) <= CURVES_MAX:
        axes.plot(iterations, together_RI.T, color=colour, linewidth=0.8, alpha=0.35)
    else:
        axes.fill_between(
            iterations, *np.nanquantile(together_RI, (0.1, 0.9), axis=0), color=colour, alpha=BAND
        )
    few = "one line an update" if len(curves) <= CURVES_MAX else "band: the middle 80 %"
    mean = np.nanmean(together_RI, axis=0)
    label = "disparity of one update" if len(curves) == 1 else f"mean of {len(curves)} updates ({few})"
    axes.plot(iterations, mean, color=colour, linewidth=2, label=label)
    axes.set_title(
        "Gradient inversion: what the reconstruction leaves unexplained of the update", fontsize="medium"
    )
    axes.set_xlabel("iteration")
    axes.set_ylabel("disparity, L1")
    if mean.min() > 0 and mean.max() > 20 * mean.min():
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    figure.savefig(file, format="png")


def draw_sheet(tiles: Sequence[Tile], columns: Sequence[str], title: str, file: Path) -> None:
    """Examples, each with the images that belong to it. columns: what the images of a tile are, in their order; not
    said where there is one. Of many tiles the first are drawn."""
    tiles = tiles[:TILES_MAX]
    wide = len(columns)
    across = max(1, min(len(tiles), round((1.6 * len(tiles) / wide) ** 0.5), IMAGES_ACROSS_MAX // wide))
    down = ceil(len(tiles) / across)
    side = min(IMAGE_INCHES_MAX, (SHEET_INCHES - 2 * MARGIN) / across / (wide + GAP))
    tile_width, row_height = side * (wide + GAP), side + LABEL_INCHES
    width = max(across * tile_width + 2 * MARGIN, SHEET_INCHES_MIN)
    height = down * row_height + TITLE_INCHES
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH)
    legend = "" if wide == 1 else f"\nfrom left to right: {' | '.join(columns)}"
    figure.suptitle(title + legend, fontsize="small", y=1 - MARGIN / height, va="top", wrap=True)
    first = (width - across * tile_width + GAP * side) / 2
    for place, tile in enumerate(tiles):
        row, at = divmod(place, across)
        left, bottom = first + at * tile_width, (down - 1 - row) * row_height + MARGIN / 2
        axes = figure.add_axes((left / width, bottom / height, side * wide / width, side / height))
        axes.imshow(_side_by_side(tile.images), interpolation="nearest")
        axes.set(xticks=[], yticks=[], anchor="NW")
        axes.spines[:].set_color("0.7")
        axes.set_title(tile.label, fontsize=7, loc="left", pad=2)
    figure.savefig(file, format="png")


def draw_closeness(pools: Mapping[str, Mapping[str, Numbers]], title: str, file: Path) -> None:
    """How close reconstructed examples come to pools of data, as histograms. pools: by measure, as it is to be written
    below the axis, and by pool, [r]."""
    figure, every = _figure(len(pools), (4.6 * len(pools) + 0.6, 4.4))
    figure.suptitle(title, fontsize="medium", wrap=True)
    for axes, (measure, by_pool) in zip(every, pools.items(), strict=True):
        values = np.concatenate(list(by_pool.values()))
        low, high = float(values.min()), float(values.max())
        edges = np.linspace(low, high if high > low else low + 1, EDGES + 1)
        for (colour, line), (pool, values_r) in zip(POOL_LINES, by_pool.items(), strict=False):
            shares = np.histogram(values_r, edges)[0] / len(values_r)
            axes.stairs(shares, edges, fill=True, color=colour, alpha=BAND)
            axes.stairs(shares, edges, color=colour, linestyle=line, linewidth=1.4, label=pool)
            axes.axvline(float(values_r.mean()), color=colour, linestyle=line, linewidth=1)
        axes.set_xlabel(measure)
    every[0].set_ylabel("share of reconstructed examples")
    figure.legend(
        *every[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2 if len(every) == 1 else len(POOL_LINES),
        frameon=False,
        title="closest among (vertical: mean)",
    )
    figure.savefig(file, format="png")


def draw_errors_by_staleness(
    staleness_S: Sequence[int],
    l1: Mapping[str, Numbers],
    cosine: Mapping[str, Numbers],
    title: str,
    file: Path,
) -> None:
    """Compensation error against staleness. l1, cosine: by method, [S, R], NaN where there is none. The line is the
    mean, the band one standard deviation. Besides the methods of `NAMES` at most three others may be there, under
    names of their own.
    Figures 2 and 7 of the paper.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/measures.md#compensation-errors
    """
    figure, (left, right) = _figure(2, (11.0, 4.6))
    figure.suptitle(title, fontsize="medium", wrap=True)
    for axes, errors, what in ((left, l1, "L1 error"), (right, cosine, "cosine error, 1 - cos")):
        others = iter(OTHERS)
        for method, values_SR in errors.items():
            colour, line, marker = LINES[method] if method in LINES else next(others)
            known_S = np.isfinite(values_SR).any(axis=1)
            at_S = np.asarray(staleness_S)[known_S]
            mean_S, std_S = np.nanmean(values_SR[known_S], axis=1), np.nanstd(values_SR[known_S], axis=1)
            axes.fill_between(at_S, mean_S - std_S, mean_S + std_S, color=colour, alpha=BAND, linewidth=0)
            axes.plot(
                at_S,
                mean_S,
                color=colour,
                linestyle=line,
                marker=marker,
                markersize=4,
                label=NAMES.get(method, method),
            )
        axes.set_xlabel("staleness, rounds")
        axes.set_ylabel(what)
        axes.set_ylim(bottom=0)
        axes.set_xticks(_few(staleness_S))
    left.legend(
        frameon=False,
        loc="upper left",
        title="mean, band: one standard deviation",
        fontsize="small",
        alignment="left",
    )
    figure.savefig(file, format="png")


def draw_errors_by_round(
    rounds_T: Sequence[int],
    l1: Mapping[str, Numbers],
    cosine: Mapping[str, Numbers],
    title: str,
    file: Path,
    *,
    switched_at: int | None = None,
    gone_at: int | None = None,
) -> None:
    """E1 (gradient-inversion) and E2 (none), and whatever else was measured, over training. l1, cosine: by method, [T],
    NaN where nothing was measured. switched_at: round from which on estimates give way; gone_at: the first without.
    Figure 8 of the paper.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/measures.md#compensation-errors
    """
    figure, (left, right) = _figure(2, (11.0, 4.6))
    figure.suptitle(title, fontsize="medium", wrap=True)
    of_paper = {"gradient-inversion": " (E1)", "none": " (E2)"}
    for axes, errors, what in ((left, l1, "L1 error"), (right, cosine, "cosine error, 1 - cos")):
        for method, values_T in errors.items():
            colour, line, _ = LINES[method]
            known_T = np.isfinite(values_T)
            label = NAMES[method] + of_paper.get(method, "")
            axes.plot(
                np.asarray(rounds_T)[known_T], values_T[known_T], color=colour, linestyle=line, label=label
            )
        axes.set_xlabel("round")
        axes.set_ylabel(what)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _mark_switch(axes, switched_at, gone_at)
    left.legend(frameon=False, fontsize="small")
    figure.savefig(file, format="png")


def _mark_switch(axes: Axes, switched_at: int | None, gone_at: int | None) -> None:
    if switched_at is None:
        return
    axes.axvline(
        switched_at, color="black", linewidth=1, linestyle="-.", label=f"switch, round {switched_at}"
    )
    if gone_at is not None and gone_at > switched_at:
        axes.axvspan(switched_at, gone_at, color="0.5", alpha=BAND, linewidth=0, label="estimates give way")


def _figure(panels: int, inches: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=inches, dpi=DOTS_PER_INCH, layout="constrained")
    every = list(figure.subplots(1, panels, squeeze=False)[0])
    for axes in every:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    return figure, every


def _few(numbers: Sequence[int]) -> Sequence[int]:
    """At most a dozen of them, the ends of the axis among them."""
    step = ceil(len(numbers) / 12)
    return numbers[::step]


def _side_by_side(images: Sequence[Numbers]) -> Numbers:
    """[H, W of all and lines between them, 3]. Images of one channel are grey, as are those of neither one nor three:
    the mean of their channels."""
    pictures = []
    for image_CHW in images:
        channels = (
            image_CHW if len(image_CHW) == 3 else image_CHW.mean(axis=0, keepdims=True).repeat(3, axis=0)
        )
        picture_HW3 = np.moveaxis(channels, 0, -1).repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)
        pictures += [picture_HW3, np.ones((len(picture_HW3), ENLARGED, 3))]
    return np.concatenate(pictures[:-1], axis=1)
