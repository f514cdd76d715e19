"""Drawing functions for each kind of panel, as in Grafana."""

from math import isnan, nan
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from monitoring.canvas import FAINT, GRID, PANEL, Box, Canvas
from monitoring.dashboards.panels import Bars, Column, Heatmap, Panel, Spread, Stat, Table, TimeSeries
from monitoring.querying import Series
from monitoring.units import shown

COLOURS = {
    "green": "#73bf69",
    "yellow": "#f2cc0c",
    "red": "#f2495c",
    "dark-red": "#c4162a",
    "light-red": "#ff7383",
    "blue": "#5794f2",
    "dark-blue": "#3d71d9",
    "light-blue": "#8ab8ff",
    "orange": "#ff9830",
    "purple": "#b877d9",
}
PALETTE = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff9830", "#f2495c", "#5794f2", "#b877d9", "#37872d", "#fade2a")
RED_TO_GREEN = LinearSegmentedColormap.from_list("continuous-RdYlGr", ["#f2495c", "#fade2a", "#73bf69"])
UNFILLED = "#22252b"
Rows = list[dict[str, Any]]


def draw(canvas: Canvas, panel: Panel, box: Box, answer: list[Series]) -> None:
    """Draw a panel of any kind. answer: of its queries."""
    canvas.text(box.left + 12, box.top + 18, panel.title, size=9.5)
    present = [one for one in answer if not all(map(isnan, one.values))]
    if not present:
        middle = box.top + box.height / 2 + 8
        canvas.text(box.left + box.width / 2, middle, "No data", size=11, colour=FAINT, align="center")
    elif isinstance(panel, Stat):
        _stat(canvas, panel, box, present)
    elif isinstance(panel, Bars):
        _bars(canvas, panel, box, present)
    elif isinstance(panel, Heatmap):
        _heatmap(canvas, panel, box, present)
    elif isinstance(panel, Table):
        _table(canvas, panel, box, _merged(answer))
    else:
        assert isinstance(panel, TimeSeries)
        _time_series(canvas, panel, box, present)


def _time_series(canvas: Canvas, panel: TimeSeries, box: Box, answer: list[Series]) -> None:
    axes = canvas.axes(box.inside(left=62, top=36, right=14, bottom=48))
    times_s, below = canvas.times_s, np.zeros(len(canvas.times_s))
    for place, one in enumerate(answer):
        colour, values = _colour(panel, one.name, place), canvas.points(one)
        if panel.stacked:
            top = below + np.nan_to_num(values)
            axes.fill_between(times_s, below, top, color=colour, alpha=0.4, linewidth=0)
            axes.plot(times_s, np.where(top > below, top, nan), color=colour, linewidth=1)
            below = top
        else:
            axes.plot(times_s, values, color=colour, linewidth=1.6, solid_joinstyle="round")
    _scale(panel, axes)
    canvas.time_axis(axes)
    _legend(canvas, panel, box, [one.name for one in answer])


def _scale(panel: TimeSeries, axes: Axes) -> None:
    axes.grid(visible=True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        low, high = axes.get_ylim()
        low = low if panel.minimum is None else panel.minimum
        reached = max(axes.dataLim.y1, low)
        high = panel.maximum or (high if reached > low else low + 1)
        axes.set_ylim(low, high)
        axes.set_yticks(_ticks(low, high, panel))
    axes.set_ylabel(panel.axis, color=FAINT, fontsize=8, labelpad=5)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, panel.unit_of_values())))
    for bound, colour in panel.steps.above if panel.lined else ():
        axes.axhline(bound, color=_named(colour), linewidth=1, linestyle=(0, (6, 4)))


def _ticks(low: float, high: float, panel: Panel) -> list[float]:
    """At most six at round numbers of the unit."""
    steps: list[float] = [power * first for power in 10.0 ** np.arange(-6, 12) for first in (1, 2, 5)]
    if panel.unit in {"bytes", "binBps"}:
        steps = [2.0**power for power in range(60)]
    elif panel.unit == "s" and high > 60:
        steps = [60.0 * minutes for minutes in (0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 360, 720, 1440, 10080)]
    least = 1.0 if panel.decimals == 0 and panel.unit != "percentunit" else 0.0
    step = next((one for one in steps if one >= least and (high - low) / one <= 5.5), high - low)
    return [float(one) for one in np.arange(np.ceil(low / step) * step, high + step * 1e-9, step)]


def _legend(canvas: Canvas, panel: Panel, box: Box, names: list[str]) -> None:
    left, line = box.left + 14.0, box.top + box.height - 14
    for place, name in enumerate(names):
        if left + 17 + 6 * len(name) > box.left + box.width:  # Grafana wraps to a second line
            break
        canvas.rectangle(Box(left, line - 1.5, 12, 3), fill=_colour(panel, name, place))
        left = canvas.text(left + 17, line, name) + 16


def _stat(canvas: Canvas, panel: Stat, box: Box, answer: list[Series]) -> None:
    values = canvas.points(answer[0])
    newest = nan if isnan(answer[0].values[-1]) else float(values[~np.isnan(values)][-1])
    colour = _named(panel.steps.colour(newest))
    number, _, unit = shown(newest, panel.unit, panel.decimals).partition(" ")
    end = canvas.text(box.left + 12, box.top + 60, number, size=22, colour=colour)
    canvas.text(end + 5, box.top + 65, unit, size=10.5, colour=colour)
    axes = canvas.axes(box.inside(left=1, top=box.height * 0.62, right=1, bottom=1))
    axes.fill_between(canvas.times_s, 0, np.nan_to_num(values), color=colour, alpha=0.18, linewidth=0)
    axes.plot(canvas.times_s, values, color=colour, linewidth=1.1)
    axes.set_axis_off()
    axes.set_xlim(canvas.times_s[0], canvas.times_s[-1])
    axes.set_ylim(0, max(float(np.nanmax(values)), 1e-12) * 1.1)


def _bars(canvas: Canvas, panel: Bars, box: Box, answer: list[Series]) -> None:
    if isinstance(panel, Spread):
        named = _parted(answer)
    else:
        named = sorted(((one.name, one.values[-1]) for one in answer), key=lambda one: (len(one[0]), one[0]))
    most = panel.maximum or max(value for _, value in named) or 1.0
    inside = box.inside(left=52, top=40, right=62, bottom=12)
    axes = canvas.axes(inside)
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(named) - 0.5, -0.5)
    high = inside.height / len(named)
    for place, (name, value) in enumerate(named):
        part = value / most
        colour = RED_TO_GREEN(part) if panel.by_value else _named(panel.steps.colour(value))
        axes.add_patch(Rectangle((0, place - 0.36), 1, 0.72, facecolor=UNFILLED))
        axes.add_patch(Rectangle((0, place - 0.36), part, 0.72, facecolor=colour))
        middle = inside.top + (place + 0.5) * high
        canvas.text(inside.left - 8, middle, name, size=8, colour=FAINT, align="right")
        text = shown(value, panel.unit, panel.decimals)
        canvas.text(inside.left + inside.width + 8, middle, text, size=8, colour=colour)


def _heatmap(canvas: Canvas, panel: Heatmap, box: Box, answer: list[Series]) -> None:
    axes = canvas.axes(box.inside(left=62, top=36, right=14, bottom=30))
    rows = _by_bound(answer)
    reached = [np.nan_to_num(canvas.points(one)) for _, one in rows]
    counts = np.diff(np.vstack([np.zeros(len(canvas.times_s)), *reached]), axis=0)
    counts = np.where(counts > 1e-9, counts, nan)
    used = np.flatnonzero(~np.isnan(counts).all(axis=1))
    low, high = max(0, int(used[0]) - 1), min(int(used[-1]) + 2, len(rows))
    edges_s = np.append(canvas.times_s, canvas.times_s[-1] + canvas.span.step_s)
    axes.pcolormesh(
        edges_s, np.arange(low, high + 1), np.sqrt(counts[low:high]), cmap="viridis", edgecolor=PANEL, linewidth=0.6
    )
    labels = ["more" if bound == np.inf else shown(bound, panel.unit) for bound, _ in rows][low:high]
    every = -(-len(labels) // 10)
    axes.set_yticks(np.arange(low, high)[::every] + 0.5, labels[::every])
    canvas.time_axis(axes)


def _table(canvas: Canvas, panel: Table, box: Box, rows: Rows) -> None:
    widths = [max(len(one.title), *(len(_cell(one, row)) for row in rows)) + 3 for one in panel.columns]
    lefts = np.cumsum([0, *widths]) / sum(widths) * (box.width - 24) + box.left + 12
    for column, left in zip(panel.columns, lefts, strict=False):
        canvas.text(left, box.top + 48, column.title, colour=COLOURS["blue"])
    for place, row in enumerate(rows):
        middle = box.top + 78 + 28 * place
        if middle > box.top + box.height - 8:
            break
        canvas.rectangle(Box(box.left + 8, middle - 15, box.width - 16, 1), fill=GRID)
        for column, left in zip(panel.columns, lefts, strict=False):
            canvas.text(left, middle, _cell(column, row))


def _named(colour: str) -> str:
    """The colour of a Grafana name, or the given colour."""
    return COLOURS.get(colour, colour)


def _colour(panel: Panel, name: str, place: int) -> str:
    return _named(panel.colours.get(name, PALETTE[place % len(PALETTE)]))


def _by_bound(answer: list[Series]) -> list[tuple[float, Series]]:
    """Cumulative buckets, from the smallest bound on."""
    return sorted(((float(one.labels["le"]), one) for one in answer), key=lambda one: one[0])


def _parted(answer: list[Series]) -> list[tuple[str, float]]:
    """The count of each bucket alone, by its bound as text."""
    rows = _by_bound(answer)
    counts = np.diff([0.0, *(one.values[-1] for _, one in rows)])
    names = ["more" if bound == np.inf else f"{bound:g}" for bound, _ in rows]
    return [(name, max(0.0, float(count))) for name, count in zip(names, counts, strict=True)]


def _merged(answer: list[Series]) -> Rows:
    """A row for each job and instance: its labels, and the value of each query."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for one in answer:
        row = rows.setdefault((one.labels["job"], one.labels["instance"]), {})
        row |= {**one.labels, f"Value #{chr(ord('A') + one.query)}": one.values[-1]}
    return [rows[key] for key in sorted(rows)]


def _cell(column: Column, row: dict[str, Any]) -> str:
    value = row.get(column.field, "")
    return shown(value, column.unit) if column.unit and value != "" else str(value)
