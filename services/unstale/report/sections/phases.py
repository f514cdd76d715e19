"""Where the time of a round went."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table
from unstale.report.groups import Group
from unstale.report.recorded import Floats, Run
from unstale.report.sections.columns import GROUP, RUN, VERSION

_PHASES = (
    GROUP,
    Column(name="phase", head="phase"),
    Column(name="total_s", head="in all, s", form=",.3f"),
    Column(name="share_ratio", head="share", form=".1%"),
    Column(name="mean_s", head="a round, s", form=",.5f"),
    Column(name="median_s", head="median, s", form=",.5f"),
    Column(name="p95_s", head="95 % at most, s", form=",.5f"),
    Column(name="times", head="times", form=","),
)
_ROUNDS = (
    *(RUN, VERSION),
    Column(name="closed_elapsed_s", head="closed at, s", form=",.3f"),
    Column(name="applied_elapsed_s", head="applied at, s", form=",.3f"),
    Column(name="wait_s", head="wait, s", form=",.5f"),
    Column(name="compensate_s", head="compensate, s", form=",.5f"),
    Column(name="aggregate_s", head="aggregate, s", form=",.5f"),
    Column(name="updates", head="updates", form=","),
    Column(name="learning_rate", head="next learning rate", form="g"),
    Column(name="rate_factor", head="rate factor", form="g"),
    Column(name="overflowed", head="step not taken"),
    Column(name="digest", head="model digest"),
)
PHASES = ("wait", "compensate", "aggregate", "evaluate")


def section(groups: Sequence[Group]) -> Section | None:
    """None while there is no round."""
    known = _known(groups)
    if not known:
        return None
    runs = [run for group in groups for run in group.runs]
    sentences = [
        "wait: from the version before until the round closed. compensate: stale updates. aggregate: the step. "
        "evaluate: the model on the test set, while the next round waits. Checkpoints are not timed in a run directory."
    ]
    if any(run.is_simulated for run in runs):
        sentences.append("In a simulated run only waiting takes time, which is virtual.")
    return Section(
        name="phases",
        title="Phases of a round",
        sentences=sentences,
        pictures=[_bars(known)],
        tables=[
            Table(
                name="phases",
                caption="Where the time of rounds went, over all runs of a group",
                columns=_PHASES,
                rows=[row for group, phases in known for row in _phase_rows(group, phases)],
            ),
            Table(
                name="rounds",
                caption="Every round",
                columns=_ROUNDS,
                rows=[row for run in runs for row in _round_rows(run)],
                rows_shown=0,
            ),
        ],
    )


def _known(groups: Sequence[Group]) -> list[tuple[Group, dict[str, Floats]]]:
    """Groups with a round, and the seconds of the phases that took any in one of them."""
    known = [(group, phases) for group in groups if len((phases := _phases(group))["wait"])]
    taken = [phase for phase in PHASES if phase == "wait" or any(phases[phase].any() for _, phases in known)]
    return [(group, {phase: phases[phase] for phase in taken}) for group, phases in known]


def _phases(group: Group) -> dict[str, Floats]:
    """Seconds of every time that a phase was gone through."""
    return {
        "wait": np.concatenate([run.rounds.wait_s_R for run in group.runs]),
        "compensate": np.concatenate([run.rounds.compensate_s_R for run in group.runs]),
        "aggregate": np.concatenate([run.rounds.aggregate_s_R for run in group.runs]),
        "evaluate": np.concatenate([run.evaluations.evaluate_s_E for run in group.runs]),
    }


def _phase_rows(group: Group, phases: dict[str, Floats]) -> list[tuple[Cell, ...]]:
    rounds = len(phases["wait"])
    total_s = sum(float(of.sum()) for of in phases.values())
    return [
        (
            group.label,
            phase,
            float(of.sum()),
            float(of.sum()) / total_s if total_s > 0 else None,
            float(of.sum()) / rounds,
            float(np.median(of)) if len(of) else None,
            float(np.quantile(of, 0.95, method="inverted_cdf")) if len(of) else None,
            len(of),
        )
        for phase, of in phases.items()
    ]


def _round_rows(run: Run) -> list[tuple[Cell, ...]]:
    of = run.rounds
    columns = (
        *(of.version_R, of.closed_elapsed_s_R, of.applied_elapsed_s_R, of.wait_s_R, of.compensate_s_R),
        *(of.aggregate_s_R, of.updates_R, of.learning_rate_R, of.rate_factor_R, of.overflowed_R),
    )
    rows = zip(*(column.tolist() for column in columns), of.digests_R, strict=True)
    return [(run.name, *row) for row in rows]


def _bars(known: Sequence[tuple[Group, dict[str, Floats]]]) -> Picture:
    means = {phase: [float(of[phase].sum()) / len(of["wait"]) for _, of in known] for phase in known[0][1]}
    said = [
        f"{group.label}: " + ", ".join(f"{phase} {mean_s[place]:.3g} s" for phase, mean_s in means.items())
        for place, (group, _) in enumerate(known)
    ]
    return Picture(
        name="phases",
        title="Seconds of a round by phase",
        caption="Mean seconds that a round spent in each phase, over all runs of a group.",
        alternative=f"Bars of the seconds of a round by phase. {'; '.join(said)}.",
        draw=partial(_draw, names=[group.label for group, _ in known], parts=list(means.items())),
        keys=list(means),
        bars=len(known),
    )


def _draw(axes: Axes, names: Sequence[str], parts: Sequence[tuple[str, Sequence[float]]]) -> None:
    drawing.bars_across(axes, names, parts, stacked=True)
    axes.set_xlabel("seconds a round")
