"""How pictures of a report look: one panel each, the same size, lines that are told apart without colour too.

Colours are those of the page in light; `report.svg` puts names in their place, so that the page may be dark.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import LogFormatter, MaxNLocator
from numpy.typing import NDArray

from unstale.report.content import Picture
from unstale.report.statistics import Curve

INK, GRID = "#1f2328", "#d0d7de"
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#555555",
    "#b58900",
    "#7a5cd6",
    "#8c1c3a",
)  # the first four of Okabe and Ito
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
HATCHES = ("", "//", "..", "xx", "\\\\", "++")
BAND = 0.18  # opacity
INCHES_WIDE, INCHES_HIGH, LEGEND_ROW_INCHES = 4.8, 3.1, 0.2
AXIS_INCHES, BAR_INCHES = 0.9, 0.36
LEGEND_SIGNS = 62  # of a line of text over a picture
DOTS_PER_INCH = 200  # of a PNG
DOTS_MAX = 25  # with more markers they would hide the line
POINTS_MAX = 120  # of a curve over single rounds; of more rounds, each is the mean of some
PANELS_ACROSS = 3  # of a sheet
EVALUATIONS_MAX = 1500  # drawn of a curve

_LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a name may hold a dollar sign
    "font.size": 10.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.6,
    "hatch.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Of one group or kind, by its place among the others."""

    place: int

    @property
    def colour(self) -> str:
        return COLOURS[self.place % len(COLOURS)]

    @property
    def line(self) -> Any:
        return DASHES[(self.place + self.place // len(COLOURS)) % len(DASHES)]

    @property
    def marker(self) -> str:
        return MARKERS[self.place % len(MARKERS)]

    @property
    def hatch(self) -> str:
        return HATCHES[self.place % len(HATCHES)]


def svg(picture: Picture) -> str:
    """As matplotlib writes it: without its title, and with a background that is not filled."""
    with _look(picture.name):
        written = io.StringIO()
        no_facts = {"Date": None, "Creator": None}
        _drawn(picture).savefig(written, format="svg", transparent=True, metadata=no_facts)
    return written.getvalue()


def png(picture: Picture) -> bytes:
    """On white, with its title."""
    with _look(picture.name):
        return _as_png(_drawn(picture, picture.title))


def line(axes: Axes, curve: Curve, place: int, label: str, *, steps: bool = False) -> None:
    """A mean with its band. steps: it stays what it is until the next point."""
    style = Style(place=place)
    at, mean, low, high = (thinned(of) for of in (curve.at_x, curve.mean_x, curve.low_x, curve.high_x))
    mean, low, high = (np.where(np.isfinite(of), of, np.nan) for of in (mean, low, high))
    axes.fill_between(
        at, low, high, color=style.colour, alpha=BAND, linewidth=0, step="post" if steps else None
    )
    axes.plot(
        at,
        mean,
        color=style.colour,
        linestyle=style.line,
        linewidth=1.7,
        marker=style.marker if len(at) <= DOTS_MAX and not steps else "",
        markersize=4,
        drawstyle="steps-post" if steps else "default",
        label=label,
    )


VERSIONS = "version (rounds applied)"
TIME = "time since the first task, s"


def lines(
    axes: Axes, labels: Sequence[str], curves: Sequence[Curve], what: str, *, along: str = VERSIONS
) -> None:
    """Curves with their bands, from 0 on. what: they show, with its unit. along: versions, or time, where a value stays
    until the next."""
    for place, (label, curve) in enumerate(zip(labels, curves, strict=True)):
        line(axes, curve, place, label, steps=along == TIME)
    axes.set_xlabel(along)
    axes.set_ylabel(what)
    axes.set_ylim(0, _top(curves))
    if along == VERSIONS:
        whole_numbers(axes)


def from_zero(axes: Axes) -> None:
    """The axis of what is drawn, with room above for a marker."""
    axes.set_ylim(0, max(1.06 * axes.dataLim.y1, 1e-9))


def _top(curves: Sequence[Curve]) -> float | None:
    """Of the axis: bands may go on beyond twice what any mean is, and the means stay to be seen."""
    means = np.concatenate([curve.mean_x for curve in curves])
    highs = np.concatenate([np.fmax(curve.high_x, curve.mean_x) for curve in curves])
    most = means[np.isfinite(means)].max(initial=0.0)
    return 1.05 * min(2 * most, highs[np.isfinite(highs)].max(initial=0.0)) if most > 0 else None


def binned(at_x: NDArray[Any], values_x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """At most `POINTS_MAX` points, each the mean of as many neighbours, without those that are NaN; a shorter curve as
    it is."""
    width = ceil(len(at_x) / POINTS_MAX)
    if width <= 1:
        return at_x, values_x
    starts = np.arange(0, len(at_x), width)
    is_known_x = np.isfinite(values_x)
    known = np.add.reduceat(is_known_x.astype(np.float64), starts)
    sums = np.add.reduceat(np.where(is_known_x, values_x, 0.0), starts)
    means = np.divide(sums, known, out=np.full(len(starts), np.nan), where=known > 0)
    sizes = np.diff(np.append(starts, len(at_x)))
    return np.add.reduceat(at_x, starts) / sizes, means


def thinned(values_x: NDArray[Any]) -> NDArray[Any]:
    """Every so many of them and the last: no more than can be seen."""
    step = ceil(len(values_x) / EVALUATIONS_MAX)
    if step <= 1:
        return values_x
    kept: NDArray[Any] = values_x[np.unique(np.append(np.arange(0, len(values_x), step), len(values_x) - 1))]
    return kept


def logarithmic(axes: Axes, which: str) -> None:
    """An axis by its logarithm, with numbers as people write them: matplotlib's own would be mathematical text."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(LogFormatter())


def whole_numbers(axes: Axes, which: str = "x") -> None:
    """Ticks of an axis that counts."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def colour_bar(axes: Axes, image: AxesImage, what: str) -> None:
    """Beside a map. what: its colours show, with unit."""
    assert axes.figure is not None
    bar = axes.figure.colorbar(image, ax=axes, label=what)
    assert bar.solids is not None
    bar.solids.set_rasterized(True)
    bar.outline.set_visible(False)


def bars_across(
    axes: Axes, names: Sequence[str], parts: Sequence[tuple[str, Sequence[float]]], *, stacked: bool
) -> None:
    """Bars to the right, a name each from the top. parts: label and length of each name's part, one behind the other,
    or side by side when not `stacked`."""
    rows = np.arange(len(names), dtype=np.float64)
    ends = np.zeros(len(names))
    high = 0.7 if stacked else 0.8 / max(len(parts), 1)
    for place, (label, lengths) in enumerate(parts):
        style = Style(place=place)
        shift = 0.0 if stacked else (place - (len(parts) - 1) / 2) * high
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


def shortened(text: str, most: int) -> str:
    """With an ellipsis where it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def sheet(name: str, title: str, panels: Sequence[tuple[str, Picture]]) -> bytes:
    """Several pictures as one PNG, on white, under the legend that they share. panels: with what each is of."""
    with _look(name):
        across = min(len(panels), PANELS_ACROSS)
        fullest_first = sorted((picture.keys for _, picture in panels), key=len, reverse=True)
        keys = list(dict.fromkeys(key for keys in fullest_first for key in keys))
        rows = _legend_rows(keys, LEGEND_SIGNS * across)
        down = ceil(len(panels) / across)
        high = INCHES_HIGH * down + LEGEND_ROW_INCHES * (rows + 1)
        figure = Figure(figsize=(INCHES_WIDE * across, high), layout="constrained")
        every = figure.subplots(down, across, squeeze=False).flatten().tolist()
        for axes, (of, picture) in zip(every, panels, strict=False):
            picture.draw(axes)
            axes.set_title(of, loc="left", fontsize="medium")
        for axes in every[len(panels) :]:
            axes.remove()
        if keys:
            _legend(figure, keys, title, rows)
        else:
            figure.suptitle(title, x=0.01, ha="left", fontsize="medium")
        return _as_png(figure)


def _as_png(figure: Figure) -> bytes:
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return written.getvalue()


def _drawn(picture: Picture, title: str = "") -> Figure:
    rows = _legend_rows(picture.keys)
    above = max(rows - 1, 0) + (1 if title else 0)
    high = INCHES_HIGH if picture.bars is None else AXIS_INCHES + BAR_INCHES * max(picture.bars, 2)
    figure = Figure(figsize=(INCHES_WIDE, high + LEGEND_ROW_INCHES * above), layout="constrained")
    axes = figure.subplots()
    picture.draw(axes)
    if picture.keys:
        _legend(figure, picture.keys, title, rows)
    elif title:
        axes.set_title(title, loc="left", fontsize="medium")
    return figure


def _legend(figure: Figure, keys: Sequence[str], title: str, rows: int) -> None:
    """Above all axes. rows: that it takes."""
    # By what they are called: matplotlib's own search passes over names that begin with an underscore.
    artists: list[Any] = [one for axes in figure.axes for one in (*axes.get_children(), *axes.containers)]
    drawn = {artist.get_label(): artist for artist in artists}
    figure.legend(
        [drawn[key] for key in keys],
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


def _legend_rows(keys: Sequence[str], signs: int = LEGEND_SIGNS) -> int:
    """How many rows a legend takes that is as wide as so many signs."""
    for columns in range(max(4, signs // 15), 1, -1):
        widest = max((min(len(key), LEGEND_SIGNS) for key in keys), default=0) + 6
        if columns * widest <= signs:
            return ceil(len(keys) / columns)
    return len(keys)


@contextmanager
def _look(name: str) -> Iterator[None]:
    """While something is made and written. name: of the picture, so that it comes out the same each time."""
    with rc_context({**_LOOK, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a browser has more letters than our font
        yield
