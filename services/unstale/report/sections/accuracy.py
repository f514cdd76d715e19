"""Metrics of evaluated versions, such as accuracy and loss, over versions and over time, and accuracy by class."""

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import chain

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table, count
from unstale.report.groups import Group, frame, keys
from unstale.report.measures import Measure
from unstale.report.recorded import Run
from unstale.report.sections import columns
from unstale.report.sections.columns import cells, of_frame, of_spread
from unstale.report.statistics import Curve, Floats, Spread, over_time, over_versions, spread

_CLASS = Column("class", "class", "d")
DRAWN_MAX = 6  # metrics with pictures
LOG_FROM = 200.0  # ratio of the greatest to the least loss
CLASS_ROWS_SHOWN = 40
VERSIONS_MAX = 60  # columns of the map
LABELS_MAX = 20  # of classes


def section(groups: Sequence[Group], of: Sequence[Measure]) -> Section:
    """Return the section on the test set, or on the clients' own; without evaluations it has no pictures."""
    evaluated = [group for group in groups if group.evaluated]
    pictures = [
        _picture(evaluated, measure, along)
        for along in (drawing.VERSIONS, drawing.TIME)
        for measure in of[:DRAWN_MAX]
        if evaluated
    ]
    is_classification = [measure.name for measure in of] == ["accuracy", "loss"]
    return Section(
        name="accuracy" if is_classification else "metrics",
        title="Accuracy and loss" if is_classification else "Metrics",
        sentences=[] if evaluated else ["No version was evaluated on the test set."],
        pictures=pictures,
        tables=[
            of_frame("evaluations", "Evaluations", _evaluations(of), frame(groups, "evaluations"), rows_shown=0),
            Table("curves", "Means at common versions", _curves(of), _curve_rows(evaluated, of), rows_shown=0),
        ],
    )


def _evaluations(of: Sequence[Measure]) -> tuple[Column, ...]:
    return (
        *(columns.RUN, columns.VERSION, Column("elapsed_s", "time, s", ",.2f"), *(measure.cell for measure in of)),
        Column("evaluate_s", "evaluation took, s", ".4f"),
    )


def _curves(of: Sequence[Measure]) -> tuple[Column, ...]:
    spreads = [of_spread(measure.word, measure.unit, ".4f", columns.INTERVAL) for measure in of]
    return (columns.GROUP, columns.VERSION, columns.RUNS, *chain.from_iterable(spreads))


def _values(run: Run, measure: Measure) -> Floats:
    values: Floats = measure.of(run).to_numpy()
    return values


def _curve(group: Group, measure: Measure, along: str = drawing.VERSIONS) -> Curve:
    if along == drawing.TIME:
        return over_time([(run.evaluations.elapsed_s.to_numpy(), _values(run, measure)) for run in group.evaluated])
    return over_versions([(run.evaluations.version.to_numpy(), _values(run, measure)) for run in group.evaluated])


def _curve_rows(groups: Sequence[Group], of: Sequence[Measure]) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for group in groups:
        curves = [_curve(group, measure) for measure in of]
        parts = [getattr(curve, f"{part}_x") for curve in curves for part in columns.INTERVAL]
        for version, *numbers in zip(curves[0].at_x, *parts, strict=True):
            rows.append((group.label, int(version), curves[0].n, *map(float, numbers)))
    return rows


def _picture(groups: Sequence[Group], measure: Measure, along: str) -> Picture:
    curves = [_curve(group, measure, along) for group in groups]
    if along == drawing.TIME:
        over, unit = "time", "second"
        caption = f"Latest {measure.origin} {measure.name} at each time, in seconds since the first task"
    else:
        over, unit = "versions", "version"
        caption = f"{measure.origin.capitalize()} {measure.name} against the number of rounds applied"
    ends = [_ends(group, curve, unit) for group, curve in zip(groups, curves, strict=True)]

    def draw(axes: Axes) -> None:
        drawing.lines(axes, [group.legend for group in groups], curves, measure.axis, along=along)
        losses = np.concatenate([curve.mean_x for curve in curves])
        finite = losses[np.isfinite(losses)]
        if measure.name == "accuracy":
            axes.set_ylim(0, 1.02)
        elif len(finite) and finite.min() < 0:
            axes.autoscale(axis="y")
        elif len(finite) and finite.min() > 0 and finite.max() > LOG_FROM * finite.min():
            drawing.logarithmic(axes, "y")
            axes.set_ylim(float(finite.min()) / 2, float(finite.max()) * 2)

    return Picture(
        name=f"{measure.word}_over_{over}",
        title=f"{measure.title} over {over}",
        caption=caption + measure.direction + _details(groups, curves, measure, along),
        alternative=f"Curves of the {measure.origin} {measure.name}. {'; '.join(ends)}.",
        draw=draw,
        keys=keys(groups),
    )


def _details(groups: Sequence[Group], curves: Sequence[Curve], measure: Measure, along: str) -> str:
    text = "."
    if any(curve.n > 1 for curve in curves):
        text = ": mean over runs, with its 95 % confidence band (Student's t) where there are several."
    left_out = sum(curve.left_out for curve in curves)
    if left_out and along == drawing.TIME:
        text += " A mean ends with the first of its runs."
    elif left_out:
        text += f" Left out: {count(left_out, 'evaluation')} of versions that not every run of the group measured."
    values = np.concatenate([_values(run, measure) for group in groups for run in group.evaluated])
    gaps = int((~np.isfinite(values)).sum())
    return f"{text} Gaps: {count(gaps, 'evaluation')} without a finite value." if gaps else text


def _ends(group: Group, curve: Curve, unit: str) -> str:
    if not len(curve.at_x):
        return f"{group.label}: no point that all runs have"
    return (
        f"{group.label}: from {curve.mean_x[0]:.3f} at {unit} {curve.at_x[0]:,.0f} "
        f"to {curve.mean_x[-1]:.3f} at {unit} {curve.at_x[-1]:,.0f}"
    )


# --- by class ---


def _class_rows(run: Run) -> Iterator[tuple[Cell, ...]]:
    """Yield run, version, class and accuracy."""
    for version, *accuracies in run.class_accuracy.itertuples(name=None):
        for label, accuracy in enumerate(accuracies):
            yield run.name, version, label, accuracy


def by_class(groups: Sequence[Group]) -> Section | None:
    """Return the section on classes, or None if no evaluation has them."""
    groups = [group for group in groups if _classes(group)]
    if not groups:
        return None
    last = [_last(group) for group in groups]
    rows: list[tuple[Cell, ...]] = [
        (group.label, label, accuracies[label].n, *cells(accuracies[label]))
        for label in range(max(map(len, last)))
        for group, accuracies in zip(groups, last, strict=True)
        if label < len(accuracies)
    ]
    evaluations = [row for group in groups for run in group.evaluated for row in _class_rows(run)]
    return Section(
        name="classes",
        title="Accuracy by class",
        pictures=[*([_map(groups[0])] if len(groups) == 1 else []), _dots(groups, last)],
        tables=[
            Table(
                "classes",
                "Test accuracy by class at the last version that each run measured",
                (columns.GROUP, _CLASS, columns.RUNS, *of_spread("accuracy", "ratio", ".4f")),
                rows,
                rows_shown=CLASS_ROWS_SHOWN,
            ),
            Table(
                "class_evaluations",
                "Every evaluation by class",
                (columns.RUN, columns.VERSION, _CLASS, columns.ACCURACY),
                evaluations,
                rows_shown=0,
            ),
        ],
    )


def _classes(group: Group) -> int:
    """Return the number of classes that all runs have."""
    return min((run.class_accuracy.shape[1] for run in group.evaluated), default=0)


def _last(group: Group) -> list[Spread]:
    """Return the accuracy of each class at the last version of each run."""
    last_nC = np.array([run.class_accuracy.iloc[-1, : _classes(group)] for run in group.evaluated])
    return [spread(accuracy_n) for accuracy_n in last_nC.T]


def _class_ticks(classes: int) -> range:
    return range(0, classes, -(-classes // LABELS_MAX))


def _map(group: Group) -> Picture:
    """Return a map of the accuracies of one group."""
    runs = [run.class_accuracy.iloc[:, : _classes(group)] for run in group.evaluated]
    versions = reduce(pd.Index.intersection, (run.index for run in runs))
    shown = versions[drawing.sample(len(versions), VERSIONS_MAX)]
    mean = "mean over runs, at versions that all measured" if len(runs) > 1 else "at each measured version"
    fewer = f", {len(shown)} of {len(versions)} of them" if len(shown) < len(versions) else ""

    def draw(axes: Axes) -> None:
        mean_xC = np.mean([run.loc[shown] for run in runs], axis=0)
        image = axes.imshow(
            mean_xC.T, aspect="auto", cmap="cividis", vmin=0, vmax=1, interpolation="nearest", origin="lower"
        )
        axes.grid(visible=False)
        ticks = drawing.sample(len(shown), 6)
        axes.set_xticks(ticks, shown[ticks].astype(str))
        axes.set_yticks(_class_ticks(_classes(group)))
        axes.set(xlabel=drawing.VERSIONS, ylabel="class")
        drawing.colour_bar(axes, image, "test accuracy")

    return Picture(
        name="class_accuracy_over_versions",
        title="Accuracy by class over versions",
        caption=f"Test accuracy of each class, {mean}{fewer}. Light is accurate, dark is not.",
        alternative=f"A map of the test accuracy of {_classes(group)} classes over versions of {group.label}; the "
        "table of classes below has the numbers of the last version.",
        draw=draw,
    )


def _dots(groups: Sequence[Group], last: Sequence[Sequence[Spread]]) -> Picture:
    """Return the accuracies at the last version of each group."""
    worst = []
    for group, accuracies in zip(groups, last, strict=True):
        means_C = np.nan_to_num([accuracy.mean for accuracy in accuracies], nan=1.0)  # no test example: not the worst
        worst.append(f"{group.label}: worst class {means_C.argmin()} with {means_C.min():.3f}")
    has_intervals = any(len(group.evaluated) > 1 for group in groups)

    def draw(axes: Axes) -> None:
        for number, (group, accuracies) in enumerate(zip(groups, last, strict=True)):
            style = drawing.Style(number)
            shift = (number - (len(last) - 1) / 2) * min(0.16, 0.7 / len(last))
            means = np.array([accuracy.mean for accuracy in accuracies])
            axes.errorbar(
                np.arange(len(means)) + shift,
                means,
                yerr=np.nan_to_num(np.array([accuracy.high for accuracy in accuracies]) - means),
                color=style.colour,
                marker=style.marker,
                markersize=5,
                linestyle="",
                elinewidth=1.2,
                label=group.legend,
            )
        axes.set(xlabel="class", ylabel="test accuracy", ylim=(0, 1.02))
        axes.set_xticks(_class_ticks(max(map(len, last))))

    return Picture(
        name="class_accuracy",
        title="Accuracy by class at the end",
        caption="Test accuracy of each class at the last version that each run measured"
        + (": mean over runs with its 95 % confidence interval." if has_intervals else "."),
        alternative=f"Dots of the test accuracy by class. {'; '.join(worst)}.",
        draw=draw,
        keys=keys(groups),
    )
