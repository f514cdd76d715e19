"""Duration of the phases of a round."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table
from unstale.report.groups import Group, frame
from unstale.report.sections.columns import GROUP, RUN, UPDATES, VERSION, of_frame
from unstale.report.statistics import Floats, p95

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

_Phases = dict[str, Floats]
"""Seconds of every execution of each phase."""


def section(groups: Sequence[Group]) -> Section | None:
    """Return the section, or None if there is no round."""
    timed = [(group, _phases(group)) for group in groups if any(run.version for run in group.runs)]
    if not timed:
        return None
    used = [phase for phase in PHASES if phase == "wait" or any(phases[phase].any() for _, phases in timed)]
    sentences = [
        "wait: from the previous version until the round closed. compensate: stale updates. aggregate: the step. "
        "evaluate: the model on the test set, while the next round waits. Run directories do not store how long "
        "checkpoints took."
    ]
    if any(run.is_simulated for group in groups for run in group.runs):
        sentences.append("In a simulated run only waiting takes time, which is virtual.")
    rows = [row for group, phases in timed for row in _rows(group, phases, used)]
    return Section(
        name="phases",
        title="Phases of a round",
        sentences=sentences,
        pictures=[_bars(timed, used)],
        tables=[
            Table("phases", "Duration of phases, over all runs of a group", _PHASES, rows),
            of_frame("rounds", "Every round", _ROUNDS, frame(groups, "rounds"), rows_shown=0),
        ],
    )


def _phases(group: Group) -> _Phases:
    rounds, evaluations = frame([group], "rounds"), frame([group], "evaluations")
    return {phase: (rounds if phase != "evaluate" else evaluations)[f"{phase}_s"].to_numpy(float) for phase in PHASES}


def _rows(group: Group, phases: _Phases, used: Sequence[str]) -> Iterator[tuple[Cell, ...]]:
    rounds = len(phases["wait"])
    total_s = sum(float(seconds.sum()) for seconds in phases.values())
    for phase in used:
        seconds = phases[phase]
        phase_s = float(seconds.sum())
        median_s = float(np.median(seconds)) if len(seconds) else None
        share = phase_s / total_s if total_s > 0 else None
        yield group.label, phase, phase_s, share, phase_s / rounds, median_s, p95(seconds), len(seconds)


def _bars(timed: Sequence[tuple[Group, _Phases]], used: Sequence[str]) -> Picture:
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
