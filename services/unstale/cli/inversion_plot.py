"""Plots of gradient inversion. Imported only to draw, because it imports matplotlib.

Each function writes a PNG file, and raises UserError if this fails.

Legend: I iterations, r examples, R updates; C, H, W channels, height and width of an image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unstale.report import drawing, files

Numbers = NDArray[np.floating]

EDGES = 25  # of a histogram
CURVES_MAX = 40  # more are drawn as a band
TILES_MAX = 60  # of a sheet; further ones are left out
IMAGES_ACROSS_MAX = 20
SHEET_INCHES, SHEET_INCHES_MIN = 11.0, 6.5
IMAGE_INCHES_MAX = 1.0
TITLE_INCHES, LABEL_INCHES, MARGIN = 0.5, 0.2, 0.12
GAP = 0.3  # between tiles, as a fraction of an image
ENLARGED = 4  # the lines between images are a quarter of their pixels wide


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """An example of a sheet. images: side by side, each [C, H, W] in [0, 1]. label: above them."""

    images: Sequence[Numbers]
    label: str


def draw_disparity(curves: Sequence[Numbers], file: Path) -> None:
    """Draw the loss over iterations. curves: disparity before each iteration, [I] of each update."""
    longest = max(map(len, curves))
    together_RI = np.stack([np.pad(curve, (0, longest - len(curve)), mode="edge") for curve in curves])
    colour = drawing.COLOURS[0]
    iterations = np.arange(longest)
    mean = together_RI.mean(axis=0)
    with files.figure(
        file, (7.0, 4.4), "Gradient inversion: difference of the update and its reconstruction"
    ) as figure:
        axes = figure.subplots()
        if len(curves) <= CURVES_MAX:
            details = "a line per update"
            axes.plot(iterations, together_RI.T, color=colour, linewidth=0.8, alpha=0.35)
        else:
            details = "band: the middle 80 %"
            low, high = np.quantile(together_RI, (0.1, 0.9), axis=0)
            axes.fill_between(iterations, low, high, color=colour, alpha=drawing.BAND)
        label = "disparity of one update" if len(curves) == 1 else f"mean of {len(curves)} updates ({details})"
        axes.plot(iterations, mean, color=colour, linewidth=2, label=label)
        axes.set_xlabel("iteration")
        axes.set_ylabel("disparity")
        if mean.min() > 0 and mean.max() > 20 * mean.min():
            drawing.logarithmic(axes, "y")
        else:
            axes.set_ylim(bottom=0)
        drawing.whole_numbers(axes)
        axes.legend()


def draw_sheet(tiles: Sequence[Tile], columns: Sequence[str], title: str, file: Path) -> None:
    """Draw examples, each with its images: the first `TILES_MAX`. columns: descriptions of the images of a tile."""
    tiles = tiles[:TILES_MAX]
    wide = len(columns)
    across = max(1, min(len(tiles), round((1.6 * len(tiles) / wide) ** 0.5), IMAGES_ACROSS_MAX // wide))
    down = ceil(len(tiles) / across)
    side = min(IMAGE_INCHES_MAX, (SHEET_INCHES - 2 * MARGIN) / across / (wide + GAP))
    tile_width, row_height = side * (wide + GAP), side + LABEL_INCHES
    width = max(across * tile_width + 2 * MARGIN, SHEET_INCHES_MIN)
    height = down * row_height + TITLE_INCHES
    legend = "" if wide == 1 else f"\nfrom left to right: {' | '.join(columns)}"
    with files.figure(file, (width, height)) as figure:
        figure.set_layout_engine("none")
        figure.suptitle(title + legend, fontsize="small", y=1 - MARGIN / height, va="top", wrap=True)
        first = (width - across * tile_width + GAP * side) / 2
        for number, tile in enumerate(tiles):
            row, column = divmod(number, across)
            left, bottom = first + column * tile_width, (down - 1 - row) * row_height + MARGIN / 2
            axes = figure.add_axes((left / width, bottom / height, side * wide / width, side / height))
            axes.imshow(_side_by_side(tile.images), interpolation="nearest")
            axes.set(xticks=[], yticks=[], anchor="NW")
            axes.set_title(tile.label, fontsize=7, loc="left", pad=2)


def draw_closeness(pools: Mapping[str, Mapping[str, Numbers]], title: str, file: Path) -> None:
    """Draw histograms of the similarity of reconstructed examples to pools: [r] by measure and pool."""
    with files.figure(file, (4.6 * len(pools) + 0.6, 4.4), title) as figure:
        panels = figure.subplots(1, len(pools), squeeze=False)[0]
        for axes, (measure, by_pool) in zip(panels, pools.items(), strict=True):
            values = np.concatenate(list(by_pool.values()))
            low, high = float(values.min()), float(values.max())
            edges = np.linspace(low, high if high > low else low + 1, EDGES + 1)
            for index, (pool, values_r) in enumerate(by_pool.items()):
                shares = np.histogram(values_r, edges)[0] / len(values_r)
                drawing.histogram(axes, shares, edges, index, pool)
                style = drawing.Style(index)
                axes.axvline(float(values_r.mean()), color=style.colour, linestyle=style.line, linewidth=1)
            axes.set_xlabel(measure)
        panels[0].set_ylabel("share of reconstructed examples")
        figure.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=2 if len(pools) == 1 else 4,
            title="most similar among (vertical: mean)",
        )


def _side_by_side(images: Sequence[Numbers]) -> Numbers:
    """Return the images with lines between them, [H, W, 3]. Images without three channels become grey: their mean."""
    pictures = []
    for image_CHW in images:
        channels = image_CHW if len(image_CHW) == 3 else image_CHW.mean(axis=0, keepdims=True).repeat(3, axis=0)
        picture_HW3 = np.moveaxis(channels, 0, -1).repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)
        pictures += [picture_HW3, np.ones((len(picture_HW3), ENLARGED, 3))]
    return np.concatenate(pictures[:-1], axis=1)
