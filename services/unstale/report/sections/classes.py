"""Accuracy by class."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table
from unstale.report.groups import Group, keys
from unstale.report.sections.columns import ACCURACY, GROUP, RUN, RUNS, VERSION, cells, of_spread
from unstale.report.statistics import Floats, Spread, over_versions, spread

_CLASS = Column("class", "class", "d")
_CLASSES = (GROUP, _CLASS, RUNS, *of_spread("accuracy", "ratio", ".4f"))
_EVALUATIONS = (RUN, VERSION, _CLASS, ACCURACY)
ROWS_SHOWN = 40
VERSIONS_MAX = 60  # columns of the map
LABELS_MAX = 20


def section(groups: Sequence[Group]) -> Section | None:
    """Return the section, or None if no evaluation has classes."""
    groups = [group for group in groups if _classes(group)]
    if not groups:
        return None
    last = [_last(group) for group in groups]
    rows: list[tuple[Cell, ...]] = [
        (group.label, label, by_class[label].n, *cells(by_class[label]))
        for label in range(max(map(len, last)))
        for group, by_class in zip(groups, last, strict=True)
        if label < len(by_class)
    ]
    caption = "Test accuracy by class at the last version that each run measured"
    return Section(
        name="classes",
        title="Accuracy by class",
        pictures=[*([_map(groups[0])] if len(groups) == 1 else []), _dots(groups, last)],
        tables=[
            Table("classes", caption, _CLASSES, rows, rows_shown=ROWS_SHOWN),
            Table("class_evaluations", "Every evaluation by class", _EVALUATIONS, _evaluations(groups), rows_shown=0),
        ],
    )


def _evaluations(groups: Sequence[Group]) -> list[tuple[Cell, ...]]:
    return [
        (run.name, version, label, accuracy)
        for group in groups
        for run in group.evaluated
        for version, accuracies in zip(
            run.class_accuracy.index.tolist(), run.class_accuracy.to_numpy().tolist(), strict=True
        )
        for label, accuracy in enumerate(accuracies)
    ]


def _classes(group: Group) -> int:
    """Return the number of classes that all runs have."""
    return min((run.class_accuracy.shape[1] for run in group.evaluated), default=0)


def _last(group: Group) -> list[Spread]:
    """Return the accuracy of each class at the last version of each run."""
    last_nC = np.array([run.class_accuracy.iloc[-1, : _classes(group)] for run in group.evaluated])
    return [spread(accuracy_n) for accuracy_n in last_nC.T]


# --- a map of one group ---


def _map(group: Group) -> Picture:
    runs = [run.class_accuracy for run in group.evaluated]
    curves = [
        over_versions([(run.index.to_numpy(), run[label].to_numpy()) for run in runs])
        for label in range(_classes(group))
    ]
    at_x = curves[0].at_x
    shown = drawing.sample(len(at_x), VERSIONS_MAX)
    mean = "mean over runs, at versions that all measured" if len(runs) > 1 else "at each measured version"
    fewer = f", {len(shown)} of {len(at_x)} of them" if len(shown) < len(at_x) else ""
    return Picture(
        name="class_accuracy_over_versions",
        title="Accuracy by class over versions",
        caption=f"Test accuracy of each class, {mean}{fewer}. Light is accurate, dark is not.",
        alternative=f"A map of the test accuracy of {len(curves)} classes over versions of {group.label}; the table of "
        "classes below has the numbers of the last version.",
        draw=partial(
            _draw_map, versions=at_x[shown], accuracy_Cx=np.stack([curve.mean_x for curve in curves])[:, shown]
        ),
    )


def _draw_map(axes: Axes, versions: Floats, accuracy_Cx: Floats) -> None:
    image = axes.imshow(
        accuracy_Cx, aspect="auto", cmap="cividis", vmin=0, vmax=1, interpolation="nearest", origin="lower"
    )
    axes.grid(visible=False)
    ticks = drawing.sample(len(versions), 6)
    axes.set_xticks(ticks, [f"{versions[tick]:.0f}" for tick in ticks])
    axes.set_yticks(_class_ticks(len(accuracy_Cx)))
    axes.set_xlabel(drawing.VERSIONS)
    axes.set_ylabel("class")
    drawing.colour_bar(axes, image, "test accuracy")


def _class_ticks(classes: int) -> range:
    return range(0, classes, -(-classes // LABELS_MAX))


# --- the last version of each group ---


def _dots(groups: Sequence[Group], last: Sequence[Sequence[Spread]]) -> Picture:
    worst = []
    for group, by_class in zip(groups, last, strict=True):
        means_C = np.nan_to_num([accuracy.mean for accuracy in by_class], nan=1.0)  # no test example: not the worst
        worst.append(f"{group.label}: worst class {means_C.argmin()} with {means_C.min():.3f}")
    has_intervals = any(len(group.evaluated) > 1 for group in groups)
    return Picture(
        name="class_accuracy",
        title="Accuracy by class at the end",
        caption="Test accuracy of each class at the last version that each run measured"
        + (": mean over runs with its 95 % confidence interval." if has_intervals else "."),
        alternative=f"Dots of the test accuracy by class. {'; '.join(worst)}.",
        draw=partial(_draw_dots, labels=[group.legend for group in groups], last=last),
        keys=keys(groups),
    )


def _draw_dots(axes: Axes, labels: Sequence[str], last: Sequence[Sequence[Spread]]) -> None:
    for number, (label, by_class) in enumerate(zip(labels, last, strict=True)):
        style = drawing.Style(number)
        shift = (number - (len(last) - 1) / 2) * min(0.16, 0.7 / len(last))
        means = np.array([accuracy.mean for accuracy in by_class])
        axes.errorbar(
            np.arange(len(by_class)) + shift,
            means,
            yerr=np.nan_to_num(np.array([accuracy.high for accuracy in by_class]) - means),
            color=style.colour,
            marker=style.marker,
            markersize=5,
            linestyle="",
            elinewidth=1.2,
            label=label,
        )
    axes.set_ylim(0, 1.02)
    axes.set_xticks(_class_ticks(max(map(len, last))))
    axes.set_xlabel("class")
    axes.set_ylabel("test accuracy")
