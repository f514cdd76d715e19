"""Rounds: the duration of their phases, and the compensation of their stale updates.

Errors of compensation are against the updates that arrived later.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd

from unstale.compensators.compensator import UNCHANGED
from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table
from unstale.report.groups import Group, frame
from unstale.report.sections.columns import CLIENT, GROUP, METHOD, RUN, STALENESS, UPDATES, VERSION, of_frame
from unstale.report.statistics import Floats, p95, single

_PHASES = (
    *(GROUP, Column("phase", "phase")),
    *(Column("total_s", "total, s", ",.3f"), Column("share_ratio", "share", ".1%")),
    *(Column("mean_s", "per round, s", ",.5f"), Column("median_s", "median, s", ",.5f")),
    *(Column("p95_s", "95th percentile, s", ",.5f"), Column("times", "times", ",")),
)
_ROUNDS = (
    *(RUN, VERSION),
    Column("closed_elapsed_s", "closed at, s", ",.3f"),
    Column("applied_elapsed_s", "applied at, s", ",.3f"),
    *(Column(f"{phase}_s", f"{phase}, s", ",.5f") for phase in ("wait", "compensate", "aggregate")),
    UPDATES,
    Column("learning_rate", "next learning rate", "g"),
    Column("rate_factor", "rate factor", "g"),
    Column("overflowed", "step skipped"),
    Column("digest", "model digest"),
)
PHASES = ("wait", "compensate", "aggregate", "evaluate")
_ERRORS = (
    *(GROUP, METHOD, Column("estimates", "estimates", ",")),
    Column("staleness_mean_rounds", "mean staleness", ".2f"),
    Column("l1_mean", "L1 error, mean", ".4g"),
    Column("cosine_mean", "cosine error, mean", ".4f"),
)
_MEASURED = (
    *(RUN, VERSION, CLIENT, METHOD, STALENESS),
    *(Column("l1", "L1 error", ".4g"), Column("cosine", "cosine error", ".4f")),
)
_METHODS = (GROUP, Column("method", "made by"), UPDATES, Column("updates_ratio", "share", ".1%"))
_FALLBACKS = (GROUP, Column("reason", "reason"), UPDATES)
_NAMES = {UNCHANGED: "unchanged stale update (E2)", "gradient-inversion": "gradient inversion (E1)"}
_AXES = {"l1": ("L1", "L1 error"), "cosine": ("Cosine", "cosine error, 1 - cos")}
LINES_MAX = 8

_Seconds = dict[str, Floats]
"""Seconds of every execution of each phase."""


# --- phases ---


def phases(groups: Sequence[Group]) -> Section | None:
    """Return the section, or None if there is no round."""
    timed = [(group, _seconds(group)) for group in groups if any(run.version for run in group.runs)]
    if not timed:
        return None
    used = _used(timed)
    sentences = [
        "wait: from the previous version until the round closed. compensate: stale updates. aggregate: the step. "
        "evaluate: the model on the test set, while the next round waits. Run directories do not store how long "
        "checkpoints took."
    ]
    if any(run.is_simulated for group in groups for run in group.runs):
        sentences.append("In a simulated run only waiting takes time, which is virtual.")
    rows = [row for group, phases in timed for row in _phase_rows(group, phases, used)]
    return Section(
        name="phases",
        title="Phases of a round",
        sentences=sentences,
        pictures=[_phase_bars(timed, used)],
        tables=[
            Table("phases", "Duration of phases, over all runs of a group", _PHASES, rows),
            of_frame("rounds", "Every round", _ROUNDS, frame(groups, "rounds"), rows_shown=0),
        ],
    )


def _used(timed: Sequence[tuple[Group, _Seconds]]) -> list[str]:
    """The phases that took time in some group, and `wait`."""
    return [phase for phase in PHASES if phase == "wait" or any(phases[phase].any() for _, phases in timed)]


def _seconds(group: Group) -> _Seconds:
    rounds, evaluations = frame([group], "rounds"), frame([group], "evaluations")
    return {phase: (rounds if phase != "evaluate" else evaluations)[f"{phase}_s"].to_numpy(float) for phase in PHASES}


def _phase_rows(group: Group, phases: _Seconds, used: Sequence[str]) -> Iterator[tuple[Cell, ...]]:
    rounds = len(phases["wait"])
    total_s = sum(float(seconds.sum()) for seconds in phases.values())
    for phase in used:
        seconds = phases[phase]
        phase_s = float(seconds.sum())
        median_s = float(np.median(seconds)) if len(seconds) else None
        share = phase_s / total_s if total_s > 0 else None
        yield group.label, phase, phase_s, share, phase_s / rounds, median_s, p95(seconds), len(seconds)


def _phase_bars(timed: Sequence[tuple[Group, _Seconds]], used: Sequence[str]) -> Picture:
    means = {phase: [float(phases[phase].sum()) / len(phases["wait"]) for _, phases in timed] for phase in used}
    texts = [
        f"{group.label}: " + ", ".join(f"{phase} {mean_s[index]:.3g} s" for phase, mean_s in means.items())
        for index, (group, _) in enumerate(timed)
    ]
    return Picture(
        name="phases",
        title="Seconds per round by phase",
        caption="Mean seconds per round in each phase, over all runs of a group.",
        alternative=f"Bars of the seconds per round by phase. {'; '.join(texts)}.",
        draw=partial(
            drawing.bars_across,
            names=[group.label for group, _ in timed],
            parts=list(means.items()),
            axis_label="seconds per round",
            stacked=True,
        ),
        keys=list(means),
        bars=len(timed),
    )


# --- compensation ---


def compensation(groups: Sequence[Group]) -> Section | None:
    """Return the section, or None if no run has a compensator."""
    groups = [group for group in groups if any(run.is_compensated for run in group.runs)]
    if not groups:
        return None
    measured = frame(groups, "errors")
    sentences = [
        "The error of an estimate is its distance from the update that the client made in the end: L1 is the sum of "
        "the absolute differences of all parameters, cosine is 1 - cos. The method none is the unchanged stale update; "
        "an estimate with the same error is worth nothing."
    ]
    if measured.empty:
        sentences.append("No error was measured.")
    return Section(
        name="compensation",
        title="Compensation",
        sentences=sentences,
        pictures=[] if measured.empty else [_error_picture(groups, measured, column) for column in _AXES],
        tables=_tables(groups, measured),
    )


def _by_method(measured: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Return the errors of each group and method, those of unchanged updates first."""
    finite = measured.replace([np.inf, -np.inf], np.nan)
    order = sorted(finite.method.unique(), key=lambda method: (method != UNCHANGED, method))
    finite.method = finite.method.astype(pd.CategoricalDtype(order))
    return [(group, method, errors) for (group, method), errors in finite.groupby(["group", "method"])]


def _error_picture(groups: Sequence[Group], measured: pd.DataFrame, column: str) -> Picture:
    all_lines = _by_method(measured)
    shown = all_lines[:LINES_MAX]
    labels = [f"{group}: " * (len(groups) > 1) + _NAMES.get(method, method) for group, method, _ in shown]
    means = [errors.groupby("version")[column].mean() for _, _, errors in shown]
    curves = [single(*drawing.binned(mean.index.to_numpy(float), mean.to_numpy(float))) for mean in means]
    averages = [f"{label} {np.nanmean(curve.mean_x):.3g}" for label, curve in zip(labels, curves, strict=True)]
    rest = f" The first {LINES_MAX} of {len(all_lines)} lines are drawn." if len(all_lines) > LINES_MAX else ""
    word, axis = _AXES[column]
    return Picture(
        name=f"compensation_error_{column}",
        title=f"{word} error of compensation",
        caption=f"Mean error of the estimates that a round could check, over all runs of a group.{rest}",
        alternative=f"Lines of the {word} error over versions, on average: {'; '.join(averages)}.",
        draw=partial(drawing.lines, labels=labels, curves=curves, axis_label=axis),
        keys=labels,
    )


def _tables(groups: Sequence[Group], measured: pd.DataFrame) -> list[Table]:
    errors = [
        (group, method, len(errors), *errors[["staleness_rounds", "l1", "cosine"]].mean().tolist())
        for group, method, errors in _by_method(measured)
    ]
    methods = _most_common(frame(groups, "compensations").assign(updates=1), "method")
    methods["updates_ratio"] = methods.updates / methods.groupby("group").updates.transform("sum")
    fallbacks = _most_common(frame(groups, "fallbacks"), "reason")
    return [
        of_frame("compensation_methods", "Updates by the method that replaced them", _METHODS, methods),
        of_frame("compensation_fallbacks", "Updates that were not compensated as configured", _FALLBACKS, fallbacks),
        Table("compensation_errors", "Errors of compensation", _ERRORS, errors),
        of_frame("compensation_measured", "Every measured error of compensation", _MEASURED, measured, rows_shown=0),
    ]


def _most_common(updates: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the number of updates by group and column, the greatest of each group first."""
    counts = updates.groupby(["group", column], sort=False).updates.sum().reset_index()
    return counts.sort_values(["group", "updates"], ascending=[True, False], kind="stable")
