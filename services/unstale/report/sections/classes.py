"""Accuracy by class."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table
from unstale.report.groups import Group, keys
from unstale.report.recorded import Floats, Run
from unstale.report.sections.accuracy import measured
from unstale.report.sections.columns import GROUP, RUN, RUNS, VERSION, cells, of_spread
from unstale.report.statistics import Spread, over_versions, spread

_CLASS = Column(name="class", head="class", form="d")
_CLASSES = (
    *(GROUP, _CLASS, RUNS),
    *of_spread("accuracy", "ratio", ".4f"),
)
_EVALUATIONS = (
    *(RUN, VERSION, _CLASS),
    Column(name="accuracy_ratio", head="accuracy", form=".4f"),
)
ROWS_SHOWN = 40
VERSIONS_MAX = 60  # columns of the map
LABELS_MAX = 20


def section(groups: Sequence[Group]) -> Section | None:
    """None where nothing was measured by class."""
    known = [(group, runs) for group in groups if (runs := measured(group)) and _classes(runs)]
    if not known:
        return None
    last = [_last(runs) for _, runs in known]
    pictures = [_dots(known, last)]
    if len(known) == 1:
        pictures.insert(0, _map(*known[0]))
    rows: list[tuple[Cell, ...]] = [
        (group.label, label, of.n, *cells(of))
        for label in range(max(map(len, last)))
        for (group, _), by_class in zip(known, last, strict=True)
        for of in by_class[label : label + 1]
    ]
    return Section(
        name="classes",
        title="Accuracy by class",
        pictures=pictures,
        tables=[
            Table(
                name="classes",
                caption="Test accuracy by class at the last version that each run measured",
                columns=_CLASSES,
                rows=rows,
                rows_shown=ROWS_SHOWN,
            ),
            Table(
                name="class_evaluations",
                caption="Every evaluation by class",
                columns=_EVALUATIONS,
                rows=[row for _, runs in known for run in runs for row in _rows(run)],
                rows_shown=0,
            ),
        ],
    )


def _classes(runs: Sequence[Run]) -> int:
    return min(int(run.evaluations.classes_EC.shape[1]) for run in runs)


def _last(runs: Sequence[Run]) -> list[Spread]:
    """By class, at the last version of each run."""
    return [
        spread([float(run.evaluations.classes_EC[-1, label]) for run in runs])
        for label in range(_classes(runs))
    ]


def _rows(run: Run) -> list[tuple[Cell, ...]]:
    return [
        (run.name, int(version), label, float(share))
        for version, shares in zip(run.evaluations.version_E, run.evaluations.classes_EC, strict=True)
        for label, share in enumerate(shares)
    ]


# --- a map of one group ---


def _map(group: Group, runs: Sequence[Run]) -> Picture:
    curves = [
        over_versions([(run.evaluations.version_E, run.evaluations.classes_EC[:, label]) for run in runs])
        for label in range(_classes(runs))
    ]
    at_x = curves[0].at_x
    kept = np.unique(np.linspace(0, len(at_x) - 1, min(len(at_x), VERSIONS_MAX)).round().astype(int))
    shares_Cx = np.stack([curve.mean_x for curve in curves])[:, kept]
    mean = (
        "mean over runs, at versions that all measured"
        if len(runs) > 1
        else "at each version that was measured"
    )
    fewer = f", {len(kept)} of {len(at_x)} of them" if len(kept) < len(at_x) else ""
    return Picture(
        name="class_accuracy_over_versions",
        title="Accuracy by class over versions",
        caption=f"Test accuracy of each class, {mean}{fewer}. Light is right, dark is wrong.",
        alternative=f"A map of the test accuracy of {len(curves)} classes over versions of {group.label}; the table of "
        "classes below has the figures of the last version.",
        draw=partial(_draw_map, versions=at_x[kept], shares_Cx=shares_Cx),
    )


def _draw_map(axes: Axes, versions: Floats, shares_Cx: Floats) -> None:
    image = axes.imshow(
        shares_Cx, aspect="auto", cmap="cividis", vmin=0, vmax=1, interpolation="nearest", origin="lower"
    )
    axes.grid(visible=False)
    few = np.unique(np.linspace(0, len(versions) - 1, min(len(versions), 6)).round().astype(int))
    axes.set_xticks(few, [f"{versions[place]:.0f}" for place in few])
    _label_classes(axes.set_yticks, len(shares_Cx))
    axes.set_xlabel("version (rounds applied)")
    axes.set_ylabel("class")
    drawing.colour_bar(axes, image, "test accuracy")


def _label_classes(set_ticks: object, classes: int) -> None:
    step = -(-classes // LABELS_MAX)
    assert callable(set_ticks)
    set_ticks(range(0, classes, step))


# --- the last version of each group ---


def _dots(known: Sequence[tuple[Group, list[Run]]], last: Sequence[Sequence[Spread]]) -> Picture:
    worst = [
        f"{group.label}: worst class {min(range(len(of)), key=lambda label: _or_one(of[label].mean))} "
        f"with {min(_or_one(share.mean) for share in of):.3f}"
        for (group, _), of in zip(known, last, strict=True)
    ]
    bars = any(len(runs) > 1 for _, runs in known)
    return Picture(
        name="class_accuracy",
        title="Accuracy by class at the end",
        caption="Test accuracy of each class at the last version that each run measured"
        + (": mean over runs with its 95 % confidence interval." if bars else "."),
        alternative=f"Dots of the test accuracy by class. {'; '.join(worst)}.",
        draw=partial(_draw_dots, labels=[group.legend for group, _ in known], last=last),
        keys=keys([group for group, _ in known]),
    )


def _or_one(share: float) -> float:
    """A class that no test example has is not the worst."""
    return 1.0 if np.isnan(share) else share


def _draw_dots(axes: Axes, labels: Sequence[str], last: Sequence[Sequence[Spread]]) -> None:
    for place, (label, of) in enumerate(zip(labels, last, strict=True)):
        style = drawing.Style(place=place)
        shift = (place - (len(last) - 1) / 2) * min(0.16, 0.7 / len(last))
        means = np.array([share.mean for share in of])
        halves = np.nan_to_num(np.array([share.high for share in of]) - means)
        axes.errorbar(
            np.arange(len(of)) + shift,
            means,
            yerr=halves,
            color=style.colour,
            marker=style.marker,
            markersize=5,
            linestyle="",
            elinewidth=1.2,
            label=label,
        )
    axes.set_ylim(0, 1.02)
    _label_classes(axes.set_xticks, max(map(len, last)))
    axes.set_xlabel("class")
    axes.set_ylabel("test accuracy")
