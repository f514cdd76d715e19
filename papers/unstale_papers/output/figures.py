"""The figures of a preset: its published ones redrawn, and its numbers as pictures.

Each panel is a picture of its own on the page, and one part of the figure's PNG. Panels vary in the axes that are not
the line axis. Cells without measurements are not drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan

import numpy as np

from unstale.report.content import Picture, Section, count, listed
from unstale.report.drawing import VERSIONS
from unstale.report.statistics import Curve as Drawn
from unstale.report.statistics import over_versions
from unstale_papers.output import plots, special
from unstale_papers.output.findings import label_text
from unstale_papers.output.report_context import ReportContext
from unstale_papers.output.shows import Show, along, arrays, show
from unstale_papers.output.special import numeric
from unstale_papers.preset import Cell, Curve
from unstale_papers.table_metrics import measure

PAIRS_MIN = 4  # printed and measured numbers, for a picture of one against the other
LABELS_MIN = 3  # of an axis that has numbers, for a picture over it
SMOOTHED = f"Lines of many points are means of the last {plots.SMOOTH}; faint behind them are the points."
DIVERGED = "Lines of runs that diverged leave the frame where they are off the others' scale."
BAND = (
    "Lines are means over seeds, bands one standard deviation; on a logarithmic axis a band that would reach 0 has its "
    "upper half alone."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """name: of its PNG. panels: with the labels of each; the pictures have the whole title."""

    name: str
    title: str
    caption: str
    panels: tuple[tuple[str, Picture], ...]

    @property
    def alternative(self) -> str:
        """Alternative text of all panels."""
        return " ".join(f"{of}: {picture.alternative}".removeprefix(": ") for of, picture in self.panels)


def figures(context: ReportContext) -> list[Figure]:
    """The figures that have a measurement."""
    preset = context.preset
    every: list[tuple[str, str, list[special.Panel]]] = []
    for curve in preset.curves:
        panels, caption = _published(context, curve)
        every.append((curve.title, caption, panels))
    every += [("Loss around the model", special.SURFACE, special.surfaces(context))]
    every += [(title, _OVER, panels) for title, panels in _over_axes(context)]
    every += [(title, _AGAINST, panels) for title, panels in _against(context)]
    made = []
    for number, (title, caption, panels) in enumerate(((one[0], one[1], one[2]) for one in every if one[2]), 1):
        text = " ".join(filter(None, (caption, context.size)))
        name = f"{preset.name}-{number}"
        made.append(
            Figure(
                name=name,
                title=title,
                caption=text,
                panels=tuple(
                    (of, _picture(panel, f"{name}-{place}", title, text))
                    for place, panel in enumerate(panels, 1)
                    for of in [panel.of]
                ),
            )
        )
    return made


def section(context: ReportContext, made: Sequence[Figure]) -> Section:
    """The section of all figures, or the reason for none."""
    drawn = {figure.title for figure in made}
    absent = [
        f"{curve.title}: nothing was measured for it." for curve in context.preset.curves if curve.title not in drawn
    ]
    return Section(
        name="figures",
        title="Figures",
        sentences=absent if made or absent else ["Nothing was measured that could be drawn."],
        pictures=[picture for figure in made for _, picture in figure.panels],
    )


def _picture(panel: special.Panel, name: str, title: str, caption: str) -> Picture:
    return Picture(
        name=name,
        title=f"{title}: {panel.of}" if panel.of else title,
        caption=caption,
        alternative=panel.alternative,
        draw=panel.draw,
        keys=panel.keys,
    )


# --- curves ---


def _published(context: ReportContext, curve: Curve) -> tuple[list[special.Panel], str]:
    if curve.shows in special.SHOWS:
        return special.SHOWS[curve.shows](context, curve)
    shown = show(curve.shows)
    panels: list[special.Panel] = []
    by_panel: dict[str, list[plots.Line]] = {}
    for labels, cells in special.panels(context.preset, curve.line):
        records = [record for cell in cells for record in special.of_cell(context, cell)]
        lines = list(_lines(context, curve, shown, cells))
        if not lines:
            continue
        what = along(curve.shows, records)
        by_panel[label_text(labels)] = lines
        panels.append(
            special.Panel(
                of=label_text(labels),
                alternative=_alternative(shown, lines, what),
                keys=[line.label for line in lines],
                draw=partial(
                    plots.draw_lines,
                    lines=lines,
                    along=what,
                    axis=shown.axis,
                    target=curve.target,
                    is_share=shown.is_share,
                ),
            )
        )
    drawn = [line for lines in by_panel.values() for line in lines]
    smoothed = SMOOTHED if any(plots.is_smooth(line.curve) for line in drawn) else ""
    diverged = DIVERGED if any(line.diverged for line in drawn) else ""
    fewer = _fewer_seeds(by_panel, len(context.wanted))
    return panels, " ".join(filter(None, (_caption(context, curve, shown), fewer, smoothed, diverged)))


def _fewer_seeds(by_panel: Mapping[str, Sequence[plots.Line]], seeds: int) -> str:
    """`Lines of fewer than 3 seeds: beta 0.3: MOON and REFL (1 seed); beta 1.0: all (1 seed).`, or nothing."""
    parts = []
    for panel, lines in by_panel.items():
        by_seeds: dict[int, list[str]] = {}
        for line in lines:
            by_seeds.setdefault(line.curve.n, []).append(line.label)
        for number, labels in by_seeds.items():
            if number < seeds:
                names = "all" if len(labels) == len(lines) else listed(labels, most=len(labels))
                parts.append(f"{panel}{': ' if panel else ''}{names} ({count(number, 'seed')})")
    return f"Lines of fewer than {count(seeds, 'seed')}: {'; '.join(parts)}." if parts else ""


def _caption(context: ReportContext, curve: Curve, shown: Show) -> str:
    band = [BAND] if len(context.wanted) > 1 else []
    cells = context.preset.cells
    is_printed = any(shown.ends_as in cell.published or _reached(context, curve, cell) for cell in cells)
    marks = ["Open marks are published numbers."] if is_printed else []
    level = [f"The dashed line is at {curve.target:g}."] if curve.target is not None else []
    return " ".join((*band, *marks, *level))


def _lines(context: ReportContext, curve: Curve, shown: Show, cells: Sequence[Cell]) -> Iterator[plots.Line]:
    order = special.places(context.preset, curve.line)
    for cell in cells:
        records = special.of_cell(context, cell)
        series = [arrays(shown.of(record)) for record in records]
        known = [one for one in series if len(one[0])]
        if not known:
            continue
        drawn = over_versions(known, band="std")
        if not len(drawn.at_x):
            continue
        label = cell.labels[curve.line]
        yield plots.Line(
            place=order[label],
            label=special.named(curve.line, label),
            curve=drawn,
            printed=[*_reached(context, curve, cell), *_end(shown, cell, drawn)],
            diverged=all(record.diverged for record in records),
        )


def _reached(context: ReportContext, curve: Curve, cell: Cell) -> list[tuple[float, float]]:
    """Round in which the paper's run reached the target; empty at a smaller scale."""
    if curve.target is None or context.scale.rounds < 1:
        return []
    number = cell.published.get(f"rounds to {100 * curve.target:g} %")
    return [] if number is None else [(number.value, curve.target)]


def _end(shown: Show, cell: Cell, drawn: Drawn) -> list[tuple[float, float]]:
    number = cell.published.get(shown.ends_as or "")
    return [] if number is None or number.is_bound else [(float(drawn.at_x[-1]), number.value)]


def _alternative(shown: Show, lines: Sequence[plots.Line], what: str) -> str:
    unit = "version" if what == VERSIONS else what
    text = [
        f"{line.label} from {line.curve.mean_x[0]:.4g} at {unit} {line.curve.at_x[0]:.4g} to "
        f"{line.curve.mean_x[-1]:.4g} at {line.curve.at_x[-1]:.4g}"
        for line in lines
    ]
    return f"Curves of {shown.axis}. {'; '.join(text)}."


# --- numbers over an axis, and against print ---

_OVER = (
    "Filled marks are measured, with one standard deviation over seeds where there are several; open marks on dotted "
    "lines are published."
)
_AGAINST = (
    "Each mark is a cell; on the dashed line it is measured as it is printed. Bars are one standard deviation over "
    "seeds where there are several."
)


def _over_axes(context: ReportContext) -> Iterator[tuple[str, list[special.Panel]]]:
    """Pictures of the first measure and the printed ones over each numeric axis."""
    preset = context.preset
    printed = {name for cell in preset.cells for name in cell.published}
    for axis in (*preset.rows, *preset.columns):
        values = numeric([cell.labels[axis] for cell in preset.cells if axis in cell.labels])
        if len(values) < LABELS_MIN:
            continue
        for name in dict.fromkeys((preset.measures[0], *(one for one in preset.measures if one in printed))):
            panels = list(_over_axis(context, axis, values, name))
            if panels:
                yield f"{name[0].upper()}{name[1:]} by {axis}", panels


def _over_axis(context: ReportContext, axis: str, values: Mapping[str, float], name: str) -> Iterator[special.Panel]:
    """A line for each method, where that is another axis."""
    preset, of = context.preset, measure(name)
    factor = 100.0 if of.unit == "%" else 1.0
    line = preset.method if preset.method != axis else ""
    order = special.places(preset, line) if line else {"": 0}
    groups = special.grouped(preset.cells, {axis, line})
    for labels, cells in groups:
        series = []
        for label, place in order.items():
            own = [cell for cell in cells if cell.labels.get(line, "") == label and cell.labels[axis] in values]
            own.sort(key=lambda cell: values[cell.labels[axis]])
            entries = [context.comparison.entries[cell.name, name] for cell in own]
            if len({cell.labels[axis] for cell in own}) < 2 or not any(entry.spread for entry in entries):
                continue
            spreads = [None if entry.missed else entry.spread for entry in entries]
            series.append(
                plots.Series(
                    place=place,
                    label=label or "measured",
                    at_x=np.array([values[cell.labels[axis]] for cell in own]),
                    names_x=[cell.labels[axis] for cell in own],
                    mean_x=np.array([factor * one.mean if one is not None else nan for one in spreads]),
                    std_x=np.array(
                        [factor * one.std if one is not None and one.std is not None else nan for one in spreads]
                    ),
                    printed_x=np.array(
                        [factor * one.published.value if one.published is not None else nan for one in entries]
                    ),
                )
            )
        if not series:
            continue
        text = "; ".join(
            f"{one.label}: " + ", ".join(f"{m:.4g} at {n}" for m, n in zip(one.mean_x, one.names_x, strict=True))
            for one in series
        )
        yield special.Panel(
            of=label_text(labels),
            alternative=f"{of.heading} over {axis}. {text}.",
            keys=[one.label for one in series] if line else [],
            draw=partial(plots.draw_over_axis, series=series, along=axis, axis=of.heading),
        )


def _against(context: ReportContext) -> Iterator[tuple[str, list[special.Panel]]]:
    """Measured over published numbers of each measure with enough of both; not p values, which are all nearly 0."""
    preset = context.preset
    order = special.places(preset, preset.method)
    for name in preset.measures:
        of = measure(name)
        if of.of_all is not None:
            continue
        factor = 100.0 if of.unit == "%" else 1.0
        dots = []
        for label, place in order.items():
            entries = [
                context.comparison.entries[cell.name, name]
                for cell in preset.cells
                if cell.labels.get(preset.method) == label
            ]
            both = [
                (one.published.value, one.spread)
                for one in entries
                if one.published is not None and one.spread is not None and one.difference is not None
            ]
            if both:
                dots.append(
                    plots.Dots(
                        place=place,
                        label=special.named(preset.method, label),
                        published=[factor * value for value, _ in both],
                        measured=[factor * spread.mean for _, spread in both],
                        std=[factor * spread.std if spread.std is not None else nan for _, spread in both],
                    )
                )
        if sum(len(one.published) for one in dots) < PAIRS_MIN:
            continue
        apart = [m - p for one in dots for p, m in zip(one.published, one.measured, strict=True)]
        panel = special.Panel(
            of="",
            alternative=f"{of.heading}, measured over printed, {len(apart)} cells: differences from "
            f"{min(apart):.4g} to {max(apart):.4g}, {sum(apart) / len(apart):.4g} on average.",
            keys=[one.label for one in dots],
            draw=partial(plots.draw_against, dots=dots, what=of.heading),
        )
        yield f"{name[0].upper()}{name[1:]}: measured against printed", [panel]
