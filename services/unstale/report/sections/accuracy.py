"""Accuracy and loss on the test set: over versions and over time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table, count
from unstale.report.groups import Group, keys
from unstale.report.recorded import Evaluations, Floats, Run
from unstale.report.sections.columns import GROUP, INTERVAL, RUN, RUNS, VERSION, of_spread
from unstale.report.statistics import Curve, over_time, over_versions

_EVALUATIONS = (
    RUN,
    VERSION,
    Column(name="elapsed_s", head="time, s", form=",.2f"),
    Column(name="accuracy_ratio", head="accuracy", form=".4f"),
    Column(name="loss_nats", head="loss, nats", form=".4f"),
    Column(name="evaluate_s", head="measuring took, s", form=".4f"),
)
_CURVES = (
    *(GROUP, VERSION, RUNS),
    *of_spread("accuracy", "ratio", ".4f", INTERVAL),
    *of_spread("loss", "nats", ".4f", INTERVAL),
)
_LOG_FROM = 200.0  # greatest loss over the least


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measure:
    """What is drawn. word: of file names. axis: with its unit."""

    word: str
    title: str
    axis: str
    of: Callable[[Evaluations], Floats]


_ACCURACY = _Measure(
    word="accuracy", title="Accuracy", axis="test accuracy", of=lambda found: found.accuracy_E
)
_LOSS = _Measure(word="loss", title="Loss", axis="test loss, nats", of=lambda found: found.loss_E)


def section(groups: Sequence[Group]) -> Section:
    known = [(group, runs) for group in groups if (runs := measured(group))]
    if not known:
        return Section(
            name="accuracy",
            title="Accuracy and loss",
            sentences=["No version was measured on the test set, so there is nothing to draw."],
            tables=_tables(known),
        )
    pictures = [
        make(known, measure)
        for make in (_picture_over_versions, _picture_over_time)
        for measure in (_ACCURACY, _LOSS)
    ]
    return Section(name="accuracy", title="Accuracy and loss", pictures=pictures, tables=_tables(known))


def measured(group: Group) -> list[Run]:
    """Its runs of which a version was measured."""
    return [run for run in group.runs if len(run.evaluations)]


_Known = Sequence[tuple[Group, list[Run]]]


def _picture_over_versions(known: _Known, measure: _Measure) -> Picture:
    curves = [
        over_versions([(run.evaluations.version_E, measure.of(run.evaluations)) for run in runs])
        for _, runs in known
    ]
    left_out = sum(curve.left_out for curve in curves)
    less = (
        f" Left out: {count(left_out, 'evaluation')} of versions that not every run of the group measured."
        if left_out
        else ""
    )
    caption = (
        f"{measure.title} on the test set against the number of rounds applied{_band(curves)}.{less}"
        f"{_without_number(known, measure)}"
    )
    return _picture(known, curves, measure, caption, drawing.VERSIONS)


def _picture_over_time(known: _Known, measure: _Measure) -> Picture:
    curves = [
        over_time([(run.evaluations.elapsed_s_E, measure.of(run.evaluations)) for run in runs])
        for _, runs in known
    ]
    less = " A mean ends with the first of its runs." if any(curve.left_out for curve in curves) else ""
    caption = (
        f"What was measured last by then, in seconds since the first task{_band(curves)}.{less}"
        f"{_without_number(known, measure)}"
    )
    return _picture(known, curves, measure, caption, drawing.TIME)


def _picture(known: _Known, curves: Sequence[Curve], measure: _Measure, caption: str, along: str) -> Picture:
    is_time = along == drawing.TIME
    labels = [group.legend for group, _ in known]
    return Picture(
        name=f"{measure.word}_over_{'time' if is_time else 'versions'}",
        title=f"{measure.title} over {'time' if is_time else 'versions'}",
        caption=caption,
        alternative=_told(known, curves, measure, "second" if is_time else "version"),
        draw=partial(_draw, labels=labels, curves=curves, measure=measure, along=along),
        keys=keys([group for group, _ in known]),
    )


def _band(curves: Sequence[Curve]) -> str:
    if not any(curve.n > 1 for curve in curves):
        return ""
    return ": mean over runs, with its 95 % confidence band (Student's t) where there are several"


def _without_number(known: _Known, measure: _Measure) -> str:
    """A run that has diverged is not to look as if it had ended well."""
    lost = sum(int((~np.isfinite(measure.of(run.evaluations))).sum()) for _, runs in known for run in runs)
    return (
        f" Gaps: {count(lost, 'evaluation')} came out as no finite number, which has no mean." if lost else ""
    )


def _draw(axes: Axes, labels: Sequence[str], curves: Sequence[Curve], measure: _Measure, along: str) -> None:
    drawing.lines(axes, labels, curves, measure.axis, along=along)
    if measure is _ACCURACY:
        axes.set_ylim(0, 1.02)
    else:
        _scale(axes, curves)


def _scale(axes: Axes, curves: Sequence[Curve]) -> None:
    """By its logarithm where a loss has grown beyond all others."""
    every = np.concatenate([curve.mean_x for curve in curves])
    finite = every[np.isfinite(every)]
    if len(finite) and finite.min() > 0 and finite.max() > _LOG_FROM * finite.min():
        drawing.logarithmic(axes, "y")
        axes.set_ylim(float(finite.min()) / 2, float(finite.max()) * 2)


def _told(known: _Known, curves: Sequence[Curve], measure: _Measure, unit: str) -> str:
    said = [
        f"{group.label}: from {curve.mean_x[0]:.3f} at {unit} {curve.at_x[0]:,.0f} "
        f"to {curve.mean_x[-1]:.3f} at {unit} {curve.at_x[-1]:,.0f}"
        if len(curve.at_x)
        else f"{group.label}: nothing that all of its runs have in common"
        for (group, _), curve in zip(known, curves, strict=True)
    ]
    return f"Curves of the test {measure.word}. {'; '.join(said)}."


def _tables(known: _Known) -> list[Table]:
    evaluations: list[tuple[Cell, ...]] = []
    curves: list[tuple[Cell, ...]] = []
    for group, runs in known:
        for run in runs:
            found = run.evaluations
            columns = (found.version_E, found.elapsed_s_E, found.accuracy_E, found.loss_E, found.evaluate_s_E)
            evaluations += [
                (run.name, *row) for row in zip(*(column.tolist() for column in columns), strict=True)
            ]
        accuracy, loss = (
            over_versions([(run.evaluations.version_E, measure.of(run.evaluations)) for run in runs])
            for measure in (_ACCURACY, _LOSS)
        )
        curves += [
            (group.label, int(version), accuracy.n, *map(float, row))
            for version, *row in zip(
                accuracy.at_x,
                *(accuracy.mean_x, accuracy.low_x, accuracy.high_x),
                *(loss.mean_x, loss.low_x, loss.high_x),
                strict=True,
            )
        ]
    return [
        Table(
            name="evaluations", caption="Evaluations", columns=_EVALUATIONS, rows=evaluations, rows_shown=0
        ),
        Table(name="curves", caption="Means at common versions", columns=_CURVES, rows=curves, rows_shown=0),
    ]
