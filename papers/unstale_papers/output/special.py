"""Figures other than curves over versions: client accuracies, heavy updates, and the loss around a model.

Also how any figure is divided into panels and lines.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import isfinite, nan
from types import MappingProxyType

import numpy as np
from matplotlib.axes import Axes

from unstale_papers.metric_functions import FEW_HEAVY
from unstale_papers.output import plots
from unstale_papers.output.findings import label_text
from unstale_papers.output.report_context import ReportContext
from unstale_papers.output.shows import of_clients
from unstale_papers.preset import Cell, Curve, Labels, Preset
from unstale_papers.record import Record
from unstale_papers.table_metrics import measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """of: its labels, in words; empty for the only panel."""

    of: str
    alternative: str
    draw: Callable[[Axes], None]
    keys: Sequence[str] = ()


# --- panels and lines ---


def grouped(cells: Iterable[Cell], varied: Iterable[str]) -> list[tuple[Labels, list[Cell]]]:
    """Cells grouped by all other axes, in order."""
    without = set(varied)
    groups: dict[tuple[tuple[str, str], ...], list[Cell]] = {}
    for cell in cells:
        shared = tuple((axis, label) for axis, label in cell.labels.items() if axis not in without)
        groups.setdefault(shared, []).append(cell)
    return [(dict(shared), those) for shared, those in groups.items()]


def panels(preset: Preset, line: str) -> list[tuple[Labels, list[Cell]]]:
    """The groups of cells, one per panel, of a figure with a line for each label of an axis."""
    return grouped(preset.cells, (line,))


def places(preset: Preset, axis: str) -> dict[str, int]:
    """The index of each label, equal in all figures, so that a method has one style."""
    labels = dict.fromkeys(cell.labels[axis] for cell in preset.cells if axis in cell.labels)
    return {label: place for place, label in enumerate(labels)}


def named(axis: str, label: str) -> str:
    """The legend text: a method by its name, other labels with their axis."""
    return label if axis == "method" or not numeric([label]) else f"{axis} {label}"


def of_cell(context: ReportContext, cell: Cell) -> list[Record]:
    """Records by ascending seed; without diverged ones if others did not diverge, since a mean of curves is as long
    as the shortest.
    """
    seeds = context.comparison.seeds
    records = context.comparison.records
    found = [records[cell.name, seed] for seed in seeds if (cell.name, seed) in records]
    return [record for record in found if not record.diverged] or found


def numeric(labels: Iterable[str]) -> dict[str, float]:
    """The numeric labels, including `1/64`."""
    found = {}
    for label in dict.fromkeys(labels):
        try:
            found[label] = float(Fraction(label))
        except (ValueError, ZeroDivisionError):
            continue
    return found


# --- clients ---

_MEAN = "client accuracy mean"


def _clients(context: ReportContext, curve: Curve) -> tuple[list[Panel], str]:
    order = places(context.preset, curve.line)
    found = []
    for labels, cells in panels(context.preset, curve.line):
        samples = []
        for cell in cells:
            values = [value for record in of_cell(context, cell) for value in of_clients(record)]
            printed = cell.published.get(_MEAN)
            if values:
                label = cell.labels[curve.line]
                samples.append(
                    plots.Sample(
                        place=order[label],
                        label=label,
                        values=values,
                        printed=None if printed is None else printed.value,
                    )
                )
        if samples:
            summary = "; ".join(f"{one.label}: mean {np.mean(one.values):.1f}" for one in samples)
            found.append(
                Panel(
                    of=label_text(labels),
                    alternative=f"Densities of accuracies over clients, per cent. {summary}.",
                    keys=[one.label for one in samples],
                    draw=partial(
                        plots.draw_density, samples=samples, axis="accuracy on a client's own test examples, %"
                    ),
                )
            )
    return found, (
        "Histograms in bins of five points, and Gaussian kernel densities, over all clients of all seeds. Open marks "
        "are published means."
    )


# --- weights ---


def _heavy(context: ReportContext, curve: Curve) -> tuple[list[Panel], str]:
    order = places(context.preset, curve.line)
    found = []
    for labels, cells in panels(context.preset, curve.line):
        samples = [
            plots.Sample(
                place=order[cell.labels[curve.line]], label=named(curve.line, cell.labels[curve.line]), values=values
            )
            for cell in cells
            if (values := [heavy for record in of_cell(context, cell) for heavy in record.heavy_R])
        ]
        if samples:
            summary = "; ".join(
                f"{one.label}: at most {FEW_HEAVY} in {np.mean(np.asarray(one.values) <= FEW_HEAVY):.1%} of the rounds"
                for one in samples
            )
            found.append(
                Panel(
                    of=label_text(labels) if len(places(context.preset, "method")) > 1 else "",
                    alternative=f"Bars of how many updates of a round weigh more than 0.1. {summary}.",
                    keys=[one.label for one in samples],
                    draw=partial(
                        plots.draw_counts,
                        samples=samples,
                        axis="updates of a round that weigh more than 0.1",
                        limit=FEW_HEAVY + 0.5,
                    ),
                )
            )
    return found, f"Over all rounds of all seeds. Left of the dashed line are at most {FEW_HEAVY}."


def _staleness(context: ReportContext, curve: Curve) -> tuple[list[Panel], str]:
    dots = []
    for cell in context.preset.cells:
        x, y = (
            context.comparison.entry(cell, measure(name)).spread
            for name in ("aggregated gradients", "average staleness")
        )
        if x is not None and y is not None:
            others = {axis: label for axis, label in cell.labels.items() if axis != curve.line}
            std = (nan if x.std is None else x.std, nan if y.std is None else y.std)
            dots.append(plots.Dot(label=label_text(others), x=x.mean, y=y.mean, std=std))
    if len({dot.x for dot in dots}) < 2:
        return [], ""
    xs, ys = [dot.x for dot in dots], [dot.y for dot in dots]
    slope, start = (float(one) for one in np.polyfit(xs, ys, 1))
    alike = float(np.corrcoef(xs, ys)[0, 1])
    summary = "; ".join(f"{dot.label}: {dot.y:.2f} at {dot.x:.2f}" for dot in dots)
    panel = Panel(
        of="",
        alternative=f"Average staleness over aggregated gradients. {summary}. Correlation {alike:.2f}.",
        draw=partial(
            plots.draw_fit,
            dots=dots,
            along="aggregated gradients of a round",
            axis="average staleness, rounds",
            slope=slope,
            start=start,
        ),
    )
    return [panel], (
        "Means over rounds and seeds, with one standard deviation over seeds where there are several. The dashed line "
        f"is of least squares: slope {slope:.3g}, correlation {alike:.2f}."
    )


# --- orders ---

MEAN_SQUARED_GRADIENT = "mean squared gradient"
BOUND = -0.5
"""Exponent of 1 / sqrt(K T), in K and in T."""


def _orders(context: ReportContext, curve: Curve) -> tuple[list[Panel], str]:
    order = places(context.preset, curve.line)
    found = []
    for labels, cells in panels(context.preset, curve.line):
        lines = []
        over = ""
        for cell in cells:
            curves = [record.found["curves"][curve.shows] for record in of_cell(context, cell)]
            points_SX2 = [[(x, y) for x, y in one["points"] if x > 0 and y > 0] for one in curves]
            if not points_SX2 or len(points_SX2[0]) < 2:
                continue
            over = str(curves[0]["x"])
            label = cell.labels[curve.line]
            values_SX = np.array([[y for _, y in points] for points in points_SX2])
            at_x = np.array([float(x) for x, _ in points_SX2[0]])
            lines.append(
                plots.Power(
                    place=order[label],
                    label=named(curve.line, label),
                    at_x=at_x,
                    mean_x=values_SX.mean(axis=0),
                    std_x=values_SX.std(axis=0, ddof=1) if len(values_SX) > 1 else np.zeros_like(at_x),
                )
            )
        if lines:
            summary = "; ".join(f"{one.label}: slope {one.slope:.2f}" for one in lines)
            found.append(
                Panel(
                    of=label_text(labels),
                    alternative=f"{curve.shows} over {over}, both axes logarithmic. {summary}.",
                    keys=[one.label for one in lines],
                    draw=partial(plots.draw_powers, lines=lines, along=over, axis=curve.shows, bound=BOUND),
                )
            )
    return found, (
        "Means over seeds with one standard deviation, both axes logarithmic. Dashed lines have the exponent of the "
        f"bound, {BOUND:g}, and start at the first mark of each line: where marks are above it, the measured order is "
        "worse."
    )


SHOWS: Mapping[str, Callable[[ReportContext, Curve], tuple[list[Panel], str]]] = MappingProxyType(
    {
        "client accuracy": _clients,
        "heavy gradients": _heavy,
        "staleness over aggregated gradients": _staleness,
        MEAN_SQUARED_GRADIENT: _orders,
    }
)
"""Panels and captions that `Curve.shows` may name beside the curves of `shows`."""


# --- surfaces ---

SURFACE = "The mean loss at models around the last one (the cross), of the first seed; each map has its own colours."


def surfaces(context: ReportContext) -> list[Panel]:
    """Panels of the measured surfaces."""
    found = []
    for cell in context.preset.cells:
        for record in of_cell(context, cell)[:1]:
            values_PP = np.asarray(record.found.get("surface", ()), np.float64)
            if values_PP.ndim != 2 or not np.isfinite(values_PP).any():
                continue
            finite = [value for value in values_PP.flatten().tolist() if isfinite(value)]
            middle = values_PP[len(values_PP) // 2, len(values_PP) // 2]
            found.append(
                Panel(
                    of=label_text(cell.labels),
                    alternative=f"A map of the loss around the model: {middle:.4g} nats at the model, "
                    f"{min(finite):.4g} to {max(finite):.4g} around it.",
                    draw=partial(
                        plots.draw_surface, surface_PP=values_PP, low=min(finite), high=max(finite), what="loss, nats"
                    ),
                )
            )
    return found
