"""Accuracy and loss on the test set, over versions and over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table, count
from unstale.report.groups import Group, frame, keys
from unstale.report.recorded import Run
from unstale.report.sections.columns import ACCURACY, GROUP, INTERVAL, LOSS, RUN, RUNS, VERSION, of_frame, of_spread
from unstale.report.statistics import Curve, Floats, over_time, over_versions

_EVALUATIONS = (
    *(RUN, VERSION, Column("elapsed_s", "time, s", ",.2f"), ACCURACY, LOSS),
    Column("evaluate_s", "evaluation took, s", ".4f"),
)
_CURVES = (
    *(GROUP, VERSION, RUNS),
    *of_spread("accuracy", "ratio", ".4f", INTERVAL),
    *of_spread("loss", "nats", ".4f", INTERVAL),
)
_LOG_FROM = 200.0  # ratio of the greatest to the least loss


@dataclass(frozen=True, slots=True)
class _Measure:
    word: str  # in file names
    axis: str  # with unit
    column: str


_ACCURACY = _Measure("accuracy", "test accuracy", "accuracy_ratio")
_LOSS = _Measure("loss", "test loss, nats", "loss_nats")


def section(groups: Sequence[Group]) -> Section:
    """Return the section; without evaluations it has no pictures."""
    evaluated = [group for group in groups if group.evaluated]
    sentences = [] if evaluated else ["No version was evaluated on the test set."]
    pictures = [
        _picture(evaluated, measure, along)
        for along in (drawing.VERSIONS, drawing.TIME)
        for measure in (_ACCURACY, _LOSS)
        if evaluated
    ]
    return Section(
        name="accuracy",
        title="Accuracy and loss",
        sentences=sentences,
        pictures=pictures,
        tables=[
            of_frame("evaluations", "Evaluations", _EVALUATIONS, frame(groups, "evaluations"), rows_shown=0),
            Table("curves", "Means at common versions", _CURVES, _curve_rows(evaluated), rows_shown=0),
        ],
    )


def _values(run: Run, measure: _Measure) -> Floats:
    values: Floats = run.evaluations[measure.column].to_numpy()
    return values


def _over_versions(group: Group, measure: _Measure) -> Curve:
    return over_versions([(run.evaluations.version.to_numpy(), _values(run, measure)) for run in group.evaluated])


def _picture(groups: Sequence[Group], measure: _Measure, along: str) -> Picture:
    is_time = along == drawing.TIME
    if is_time:
        curves = [
            over_time([(run.evaluations.elapsed_s.to_numpy(), _values(run, measure)) for run in group.evaluated])
            for group in groups
        ]
        caption = f"Latest test {measure.word} at each time, in seconds since the first task"
    else:
        curves = [_over_versions(group, measure) for group in groups]
        caption = f"Test {measure.word} against the number of rounds applied"
    over, unit = ("time", "second") if is_time else ("versions", "version")
    ends = [_ends(group, curve, unit) for group, curve in zip(groups, curves, strict=True)]
    return Picture(
        name=f"{measure.word}_over_{over}",
        title=f"{measure.word.capitalize()} over {over}",
        caption=caption + _details(groups, curves, measure, is_time=is_time),
        alternative=f"Curves of the test {measure.word}. {'; '.join(ends)}.",
        draw=partial(_draw, labels=[group.legend for group in groups], curves=curves, measure=measure, along=along),
        keys=keys(groups),
    )


def _details(groups: Sequence[Group], curves: Sequence[Curve], measure: _Measure, *, is_time: bool) -> str:
    text = "."
    if any(curve.n > 1 for curve in curves):
        text = ": mean over runs, with its 95 % confidence band (Student's t) where there are several."
    left_out = sum(curve.left_out for curve in curves)
    if left_out and is_time:
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


def _draw(axes: Axes, labels: Sequence[str], curves: Sequence[Curve], measure: _Measure, along: str) -> None:
    drawing.lines(axes, labels, curves, measure.axis, along=along)
    if measure is _ACCURACY:
        axes.set_ylim(0, 1.02)
        return
    losses = np.concatenate([curve.mean_x for curve in curves])
    finite = losses[np.isfinite(losses)]
    if len(finite) and finite.min() > 0 and finite.max() > _LOG_FROM * finite.min():
        drawing.logarithmic(axes, "y")
        axes.set_ylim(float(finite.min()) / 2, float(finite.max()) * 2)


def _curve_rows(groups: Sequence[Group]) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for group in groups:
        accuracy, loss = _over_versions(group, _ACCURACY), _over_versions(group, _LOSS)
        columns = [getattr(curve, f"{part}_x") for curve in (accuracy, loss) for part in INTERVAL]
        rows += [
            (group.label, int(version), accuracy.n, *map(float, numbers))
            for version, *numbers in zip(accuracy.at_x, *columns, strict=True)
        ]
    return rows
