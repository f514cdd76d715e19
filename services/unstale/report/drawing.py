"""The look of pictures: one panel each, of one size, with lines that differ in more than colour.

Colours are those of the light page; `report.page` replaces them by class names, so that the page can be dark.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context, rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import LogFormatter, MaxNLocator
from numpy.typing import NDArray
from typing_extensions import override

from unstale.report.content import Picture, shortened
from unstale.report.statistics import Curve

_LOOK = rc_params_from_file(Path(__file__).parent / "look.mplstyle", use_default_template=False)
INK, GRID = _LOOK["text.color"], _LOOK["grid.color"]
COLOURS = (  # the first four of Okabe and Ito
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7"),
    *("#555555", "#b58900", "#7a5cd6", "#8c1c3a"),
)
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
HATCHES = ("", "//", "..", "xx", "\\\\", "++")
BAND = 0.18  # opacity
INCHES_WIDE, INCHES_HIGH, LEGEND_ROW_INCHES = 4.8, 3.1, 0.2
AXIS_INCHES, BAR_INCHES = 0.9, 0.36
LEGEND_SIGNS = 62  # characters of a line of text above a picture
DOTS_PER_INCH = 200  # of a PNG
DOTS_MAX = 40  # with more markers they would hide the line
POINTS_MAX = 120  # of a curve over rounds; with more rounds each point is a mean
EVALUATIONS_MAX = 1500  # points drawn of a curve
VERSIONS = "version (rounds applied)"
TIME = "time since the first task, s"


class Style:
    """Colour, dashes, marker and hatch of one of several lines or bars, by its number from 0."""

    def __init__(self, index: int) -> None:
        self.colour = COLOURS[index % len(COLOURS)]
        self.line = DASHES[(index + index // len(COLOURS)) % len(DASHES)]
        self.marker = MARKERS[index % len(MARKERS)]
        self.hatch = HATCHES[index % len(HATCHES)]


def svg(picture: Picture) -> str:
    """Return the SVG document that matplotlib writes, without title and background."""
    with look(picture.name):
        text = io.StringIO()
        no_metadata = {"Date": None, "Creator": None}
        _figure(picture).savefig(text, format="svg", transparent=True, metadata=no_metadata)
    return text.getvalue()


def png(picture: Picture) -> bytes:
    """Return the PNG file, with a title and a white background."""
    with look(picture.name):
        return as_png(_figure(picture, picture.title))


def line(axes: Axes, curve: Curve, index: int, label: str, *, steps: bool = False) -> None:
    """Draw a mean with its band. steps: each value holds until the next point."""
    at, mean, low, high = (thinned(values) for values in (curve.at_x, curve.mean_x, curve.low_x, curve.high_x))
    mean, low, high = (np.where(np.isfinite(values), values, np.nan) for values in (mean, low, high))
    colour = Style(index).colour
    axes.fill_between(at, low, high, color=colour, alpha=BAND, linewidth=0, step="post" if steps else None)
    plain_line(axes, at, mean, index, label, steps=steps)


def plain_line(
    axes: Axes, at_x: NDArray[Any], values_x: NDArray[Any], index: int, label: str, *, steps: bool = False
) -> None:
    """Draw a line, with markers where there are few points."""
    style = Style(index)
    axes.plot(
        thinned(at_x),
        thinned(values_x),
        color=style.colour,
        linestyle=style.line,
        linewidth=1.7,
        marker=style.marker if len(at_x) <= DOTS_MAX and not steps else "",
        markersize=4,
        drawstyle="steps-post" if steps else "default",
        label=label,
    )


def lines(
    axes: Axes, labels: Sequence[str], curves: Sequence[Curve], axis_label: str, *, along: str = VERSIONS
) -> None:
    """Draw curves with their bands, from 0. along: `VERSIONS` or `TIME`."""
    for index, (label, curve) in enumerate(zip(labels, curves, strict=True)):
        line(axes, curve, index, label, steps=along == TIME)
    axes.set(xlabel=along, ylabel=axis_label, ylim=(0, _top(curves)))
    if along == VERSIONS:
        whole_numbers(axes)


def histogram(
    axes: Axes, shares: NDArray[Any], edges: NDArray[Any], index: int, label: str, *, fill: bool = True
) -> None:
    """Draw a histogram as an outline, filled lightly."""
    style = Style(index)
    if fill:
        axes.stairs(shares, edges, fill=True, color=style.colour, alpha=BAND)
    axes.stairs(shares, edges, color=style.colour, linestyle=style.line, linewidth=1.7, label=label)


def multiples_of_even_share(
    axes: Axes, lines: Sequence[tuple[str, NDArray[Any], NDArray[Any]]], along: str, axis_label: str
) -> None:
    """Draw lines, each with its label, and the even share: a dashed line at 1."""
    for index, (label, at_x, values_x) in enumerate(lines):
        plain_line(axes, at_x, values_x, index, label)
    axes.axhline(1, color=INK, linestyle=(0, (4, 4)), linewidth=0.8, zorder=1)
    axes.set(xlabel=along, ylabel=axis_label)
    from_zero(axes)
    whole_numbers(axes)


def from_zero(axes: Axes) -> None:
    """Begin the vertical axis at 0, with room for a marker at its end."""
    axes.set_ylim(0, max(1.06 * axes.dataLim.y1, 1e-9))


def _top(curves: Sequence[Curve]) -> float | None:
    """Return the end of the axis: that of the bands, but not beyond twice the greatest mean, which stays readable."""
    means = np.concatenate([curve.mean_x for curve in curves])
    highs = np.concatenate([np.fmax(curve.high_x, curve.mean_x) for curve in curves])
    greatest = means[np.isfinite(means)].max(initial=0.0)
    return 1.05 * min(2 * greatest, highs[np.isfinite(highs)].max(initial=0.0)) if greatest > 0 else None


def binned(at_x: NDArray[Any], values_x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return at most `POINTS_MAX` points, each the mean of the finite values of some neighbours."""
    width = ceil(len(at_x) / POINTS_MAX)
    if width <= 1:
        return at_x, values_x
    points = pd.DataFrame({"at": at_x, "value": np.where(np.isfinite(values_x), values_x, np.nan)})
    means = points.groupby(np.arange(len(points)) // width).mean()
    return means["at"].to_numpy(), means["value"].to_numpy()


def thinned(values_x: NDArray[Any]) -> NDArray[Any]:
    """Return evenly chosen points, the last among them: no more than can be seen."""
    return values_x[sample(len(values_x), EVALUATIONS_MAX)]


def sample(count: int, most: int) -> NDArray[np.int64]:
    """Return at most so many evenly spaced indices below `count`, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def logarithmic(axes: Axes, which: str) -> None:
    """Make an axis logarithmic, with plain numbers: those of matplotlib are mathematical text."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(_PlainMinor())


class _PlainMinor(LogFormatter):
    """Labels the ticks that matplotlib would label, with plain numbers: `0.6`, not `6e-01`."""

    @override
    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def whole_numbers(axes: Axes, which: str = "x") -> None:
    """Have ticks at integers only."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def colour_bar(axes: Axes, image: AxesImage, axis_label: str) -> None:
    """Draw the scale of a map."""
    assert axes.figure is not None
    bar = axes.figure.colorbar(image, ax=axes, label=axis_label)
    assert bar.solids is not None
    bar.solids.set_rasterized(True)
    bar.outline.set_visible(False)


def bars_across(
    axes: Axes, names: Sequence[str], parts: Sequence[tuple[str, Sequence[float]]], axis_label: str, *, stacked: bool
) -> None:
    """Draw horizontal bars. parts: label and length of each name's part, stacked or side by side."""
    rows = np.arange(len(names), dtype=np.float64)
    ends = np.zeros(len(names))
    high = 0.7 if stacked else 0.8 / max(len(parts), 1)
    for index, (label, lengths) in enumerate(parts):
        style = Style(index)
        shift = 0.0 if stacked else (index - (len(parts) - 1) / 2) * high
        axes.barh(
            rows + shift,
            lengths,
            height=high,
            left=ends if stacked else 0,
            color=style.colour,
            hatch=style.hatch,
            edgecolor=INK,
            linewidth=0.5,
            label=label,
        )
        ends = ends + np.asarray(lengths)
    axes.set_yticks(rows, [shortened(name, 22) for name in names])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(axis_label)


def as_png(figure: Figure, *, dots_per_inch: int = DOTS_PER_INCH) -> bytes:
    """Return the PNG file of a figure."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=dots_per_inch, metadata={"Software": None})
    return data.getvalue()


def _figure(picture: Picture, title: str = "") -> Figure:
    rows = legend_rows(picture.keys)
    above = max(rows - 1, 0) + (1 if title else 0)
    high = INCHES_HIGH if picture.bars is None else AXIS_INCHES + BAR_INCHES * max(picture.bars, 2)
    figure = Figure(figsize=(INCHES_WIDE, high + LEGEND_ROW_INCHES * above), layout="constrained")
    axes = figure.subplots()
    picture.draw(axes)
    if picture.keys:
        legend(figure, picture.keys, title, rows)
    elif title:
        axes.set_title(title, loc="left", fontsize="medium")
    return figure


def legend(figure: Figure, keys: Sequence[str], title: str, rows: int) -> None:
    """Draw a legend of so many rows above all axes."""
    # Artists by their labels, because matplotlib's own search skips labels that begin with an underscore.
    artists: list[Any] = [artist for axes in figure.axes for artist in (*axes.get_children(), *axes.containers)]
    by_label = {artist.get_label(): artist for artist in artists}
    figure.legend(
        [by_label[key] for key in keys],
        [shortened(key, LEGEND_SIGNS) for key in keys],
        title=title or None,
        title_fontsize="medium",
        alignment="left",
        loc="outside upper left",
        ncols=ceil(len(keys) / rows),
        handlelength=2.4,
        columnspacing=1.2,
        borderaxespad=0.2,
    )


def legend_rows(keys: Sequence[str], signs: int = LEGEND_SIGNS) -> int:
    """Return the number of rows of a legend that is as wide as so many characters."""
    widest = max((min(len(key), LEGEND_SIGNS) for key in keys), default=0) + 6
    columns = max(1, min(max(4, signs // 15), signs // widest))
    return ceil(len(keys) / columns)


@contextmanager
def look(name: str) -> Iterator[None]:
    """Apply the look while a figure is made and written. name: of the figure, which makes its bytes reproducible."""
    with rc_context({**_LOOK, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a browser has more letters than our font
        yield
