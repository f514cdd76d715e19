"""Drawing of a reproduction's figures, each into given axes.

Legend: x points of a curve; P places on each axis of a surface.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from scipy.stats import gaussian_kde

from unstale.report import drawing
from unstale.report.content import Picture
from unstale.report.statistics import Curve
from unstale_papers.output.shows import Floats

BINS = 20  # of per cent, five points each
LOG_FROM = 20.0  # greatest over least
SMOOTH_FROM = 60  # points of a curve, from which on it is drawn as a moving mean of so many:
SMOOTH = 10
PANELS_ACROSS = 3  # of a sheet
_PRINTED = "printed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """place: index in the figure, which determines the style. printed: places and values of published numbers.
    diverged: whether its runs did, so that its values do not affect the axis range.
    """

    place: int
    label: str
    curve: Curve
    printed: Sequence[tuple[float, float]] = ()
    diverged: bool = False


def is_smooth(curve: Curve) -> bool:
    """Whether it has so many points that it is drawn as a moving mean over faint points."""
    return len(curve.at_x) >= SMOOTH_FROM


def smooth(curve: Curve) -> Curve:
    """Each point the mean of up to `SMOOTH` finite points that end with it."""

    def moving(values_x: Floats) -> Floats:
        before = np.full(SMOOTH - 1, np.nan)
        windows_xS = np.lib.stride_tricks.sliding_window_view(np.concatenate((before, values_x)), SMOOTH)
        finite_xS = np.isfinite(windows_xS)
        sums_x = np.where(finite_xS, windows_xS, 0.0).sum(axis=1)
        counts_x = finite_xS.sum(axis=1)
        return np.where(counts_x > 0, sums_x / np.maximum(counts_x, 1), np.nan)

    return replace(curve, mean_x=moving(curve.mean_x), low_x=moving(curve.low_x), high_x=moving(curve.high_x))


def draw_lines(
    axes: Axes, lines: Sequence[Line], *, along: str, axis: str, target: float | None, is_share: bool
) -> None:
    """Draw means with bands, smooth where `is_smooth`, published numbers as open marks, and a target as a dashed line.
    Diverged lines may leave the frame, which fits the others, if any, and all published numbers.
    """
    kept = [one for one in lines if not one.diverged] or lines
    values = np.concatenate(
        [one.curve.mean_x for one in kept] + [np.array([value for _, value in one.printed]) for one in lines]
    )
    finite = values[np.isfinite(values)]
    is_log = not is_share and len(finite) > 0 and finite.min() > 0 and finite.max() > LOG_FROM * finite.min()
    for one in lines:
        curve = smooth(one.curve) if is_smooth(one.curve) else one.curve
        if curve is not one.curve:
            colour = drawing.Style(index=one.place).colour
            axes.plot(one.curve.at_x, one.curve.mean_x, color=colour, linewidth=0.5, alpha=0.3, label="_each")
        drawing.line(axes, _above_0(curve) if is_log else curve, one.place, one.label)
        for at, value in one.printed:
            _mark(axes, at, value, one.place)
    if target is not None:
        axes.axhline(target, color=drawing.INK, linestyle=(0, (4, 4)), linewidth=0.8, zorder=1)
    axes.set_xlabel(along)
    axes.set_ylabel(axis)
    if is_log:
        drawing.logarithmic(axes, "y")
        if len(kept) < len(lines):
            axes.set_ylim(float(finite.min()) / 1.2, 1.2 * float(finite.max()))
    elif len(finite) and finite.min() >= 0:
        axes.set_ylim(0, 1.08 * max(float(finite.max()), target or 0.0, 1e-9))
    if along == drawing.VERSIONS:
        drawing.whole_numbers(axes)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))


def _above_0(curve: Curve) -> Curve:
    """The curve with the upper half of its band alone where the lower one reaches 0, which has no logarithm."""
    return replace(curve, low_x=np.where(curve.low_x <= 0, curve.mean_x, curve.low_x))


def _mark(axes: Axes, at: float, value: float, place: int) -> None:
    style = drawing.Style(index=place)
    axes.plot(
        [at],
        [value],
        linestyle="",
        marker=style.marker,
        markersize=8,
        markerfacecolor="none",
        markeredgecolor=style.colour,
        markeredgewidth=1.6,
        clip_on=False,
        zorder=4,
        label=f"_{_PRINTED} {place}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A measure over an axis of the table. at_x: as numbers. names_x: as in the table. std_x: NaN with one seed.
    printed_x: NaN where the paper has none.
    """

    place: int
    label: str
    at_x: Floats
    names_x: Sequence[str]
    mean_x: Floats
    std_x: Floats
    printed_x: Floats


def draw_over_axis(axes: Axes, series: Sequence[Series], *, along: str, axis: str) -> None:
    """Draw measured values as filled marks with one standard deviation, published ones as open marks."""
    for one in series:
        style = drawing.Style(index=one.place)
        axes.errorbar(
            one.at_x,
            one.mean_x,
            yerr=np.nan_to_num(one.std_x),
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markersize=5,
            linewidth=1.5,
            capsize=2.5,
            label=one.label,
        )
        axes.plot(
            one.at_x,
            one.printed_x,
            color=style.colour,
            linestyle=":",
            linewidth=0.9,
            marker=style.marker,
            markersize=8,
            markerfacecolor="none",
            markeredgewidth=1.4,
            label=f"_{_PRINTED} {one.place}",
        )
    at = np.concatenate([one.at_x for one in series])
    if at.min() > 0 and at.max() > LOG_FROM * at.min():
        drawing.logarithmic(axes, "x")
    names = {float(x): name for one in series for x, name in zip(one.at_x, one.names_x, strict=True)}
    axes.xaxis.set_major_locator(FixedLocator(sorted(names)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([names[x] for x in sorted(names)])
    axes.set_xlabel(along)
    axes.set_ylabel(axis)
    values = np.concatenate([np.concatenate((one.mean_x, one.printed_x)) for one in series])
    finite = values[np.isfinite(values)]
    if len(finite) and finite.min() > 0 and finite.max() > LOG_FROM * finite.min():
        drawing.logarithmic(axes, "y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Published against measured numbers of one method."""

    place: int
    label: str
    published: Sequence[float]
    measured: Sequence[float]
    std: Sequence[float] = field(default=())  # NaN for one seed

    @property
    def std_x(self) -> Floats:
        """0 where there is no spread."""
        return np.nan_to_num(np.asarray(self.std)) if len(self.std) else np.zeros(len(self.measured))


def draw_against(axes: Axes, dots: Sequence[Dots], *, what: str) -> None:
    """Draw measured over published numbers; on the diagonal they are equal."""
    measured = [np.asarray(one.measured) + sign * one.std_x for one in dots for sign in (-1, 1)]
    every = [value for values in (*(one.published for one in dots), *measured) for value in values]
    low, high = min(every), max(every)
    margin = 0.05 * (high - low) or 1.0
    ends = [low - margin, high + margin]
    axes.plot(ends, ends, color=drawing.INK, linestyle=(0, (4, 4)), linewidth=0.8, zorder=1, label="_same")
    for one in dots:
        style = drawing.Style(index=one.place)
        axes.errorbar(
            one.published,
            one.measured,
            yerr=one.std_x if len(one.std) else None,
            color=style.colour,
            linestyle="",
            marker=style.marker,
            markersize=5,
            capsize=2,
            label=one.label,
        )
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_xlabel(f"in print: {what}")
    axes.set_ylabel("measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Values of one cell, of all seeds. printed: their published mean."""

    place: int
    label: str
    values: Sequence[float]
    printed: float | None = None


def draw_density(axes: Axes, samples: Sequence[Sample], *, axis: str) -> None:
    """Draw histograms of per cent and a Gaussian kernel density with Scott's bandwidth, with a published mean as an
    open mark below.
    """
    at = np.linspace(0, 100, 201)
    for one in samples:
        style = drawing.Style(index=one.place)
        axes.hist(one.values, np.linspace(0, 100, BINS + 1).tolist(), density=True, color=style.colour, alpha=0.13)
        if np.ptp(one.values) > 0:
            density = gaussian_kde(one.values)(at)
            axes.plot(at, density, color=style.colour, linestyle=style.line, linewidth=1.7, label=one.label)
        else:
            axes.axvline(one.values[0], color=style.colour, linestyle=style.line, linewidth=1.7, label=one.label)
        if one.printed is not None:
            _mark(axes, one.printed, 0.0, one.place)
    axes.set_xlim(0, 100)
    axes.set_xlabel(axis)
    axes.set_ylabel("density, per point")


def draw_counts(axes: Axes, samples: Sequence[Sample], *, axis: str, limit: float) -> None:
    """Draw shares of rounds by a count, bars side by side. limit: count followed by a dashed line."""
    most = int(max(max(one.values) for one in samples))
    wide = 0.8 / len(samples)
    for number, one in enumerate(samples):
        style = drawing.Style(index=one.place)
        shares = np.bincount(np.asarray(one.values, int), minlength=most + 1) / len(one.values)
        axes.bar(
            np.arange(most + 1) + (number - (len(samples) - 1) / 2) * wide,
            shares,
            wide,
            color=style.colour,
            hatch=style.hatch,
            edgecolor=drawing.INK,
            linewidth=0.4,
            label=one.label,
        )
    axes.axvline(limit, color=drawing.INK, linestyle=(0, (4, 4)), linewidth=0.8, zorder=1)
    axes.set_xlabel(axis)
    axes.set_ylabel("share of the rounds")
    drawing.whole_numbers(axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A cell. std: of x and of y, NaN with one seed."""

    label: str
    x: float
    y: float
    std: tuple[float, float]


def draw_fit(axes: Axes, dots: Sequence[Dot], *, along: str, axis: str, slope: float, start: float) -> None:
    """Draw cells as marks with one standard deviation, and the line of least squares."""
    style = drawing.Style(index=0)
    x, y = np.array([dot.x for dot in dots]), np.array([dot.y for dot in dots])
    spread = np.nan_to_num(np.array([dot.std for dot in dots]))
    axes.errorbar(x, y, xerr=spread[:, 0], yerr=spread[:, 1], color=style.colour, linestyle="", marker="o", capsize=2.5)
    ends = np.array([x.min(), x.max()])
    axes.plot(ends, slope * ends + start, color=drawing.INK, linestyle=(0, (4, 4)), linewidth=0.9)
    for dot in dots:
        axes.annotate(dot.label, (dot.x, dot.y), xytext=(6, -12), textcoords="offset points", color=drawing.INK)
    axes.margins(0.12)
    axes.set_xlabel(along)
    axes.set_ylabel(axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Positive values over positive places, which a power law may describe. std_x: 0 with one seed."""

    place: int
    label: str
    at_x: Floats
    mean_x: Floats
    std_x: Floats

    @property
    def slope(self) -> float:
        """The measured exponent, by least squares of the logarithms."""
        return float(np.polyfit(np.log(self.at_x), np.log(self.mean_x), 1)[0])


def draw_powers(axes: Axes, lines: Sequence[Power], *, along: str, axis: str, bound: float) -> None:
    """Draw values on logarithmic axes, each with a dashed line of the exponent `bound` from its first mark."""
    for one in lines:
        style = drawing.Style(index=one.place)
        axes.errorbar(
            one.at_x,
            one.mean_x,
            yerr=one.std_x,
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markersize=5,
            linewidth=1.5,
            capsize=2.5,
            label=one.label,
        )
        bound_x = one.mean_x[0] * (one.at_x / one.at_x[0]) ** bound
        axes.plot(one.at_x, bound_x, color=style.colour, linestyle=(0, (4, 4)), linewidth=0.9, label="_bound")
    drawing.logarithmic(axes, "x")
    drawing.logarithmic(axes, "y")
    names = sorted({float(x) for one in lines for x in one.at_x})
    axes.xaxis.set_major_locator(FixedLocator(names))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{name:g}" for name in names])
    axes.set_xlabel(along)
    axes.set_ylabel(axis)


def draw_surface(axes: Axes, surface_PP: Floats, *, low: float, high: float, what: str) -> None:
    """Draw the surface from above. low, high: range of the colours."""
    image = axes.imshow(
        surface_PP, origin="lower", extent=(-1, 1, -1, 1), cmap="cividis", vmin=low, vmax=high, interpolation="nearest"
    )
    axes.grid(visible=False)
    axes.plot([0], [0], marker="+", color="white", markersize=10, markeredgewidth=2)
    axes.set_xlabel("along the update, of its length")
    axes.set_ylabel("across it")
    drawing.colour_bar(axes, image, what)


def sheet(name: str, title: str, panels: Sequence[tuple[str, Picture]]) -> bytes:
    """Return a PNG file of several pictures with a common legend. panels: pictures, each with its title."""
    with drawing.look(name):
        across = 2 if len(panels) == 4 else min(len(panels), PANELS_ACROSS)  # two by two
        longest_first = sorted((picture.keys for _, picture in panels), key=len, reverse=True)
        keys = list(dict.fromkeys(key for keys in longest_first for key in keys))
        rows = drawing.legend_rows(keys, drawing.LEGEND_SIGNS * across)
        down = ceil(len(panels) / across)
        high = drawing.INCHES_HIGH * down + drawing.LEGEND_ROW_INCHES * (rows + 1)
        figure = Figure(figsize=(drawing.INCHES_WIDE * across, high), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False).flatten().tolist()
        for axes, (panel_title, picture) in zip(grid, panels, strict=False):
            picture.draw(axes)
            axes.set_title(panel_title, loc="left", fontsize="medium")
        for axes in grid[len(panels) :]:
            axes.remove()
        if keys:
            drawing.legend(figure, keys, title, rows)
        else:
            figure.suptitle(title, x=0.01, ha="left", fontsize="medium")
        return drawing.as_png(figure)
