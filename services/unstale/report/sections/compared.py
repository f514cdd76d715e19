"""Groups against each other: how long each took to reach an accuracy, and differences where seeds match."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain

import numpy as np

from unstale.report.content import Cell, Column, Section, Table, listed
from unstale.report.groups import Group
from unstale.report.recorded import Run
from unstale.report.sections.columns import GROUP, INTERVAL, MEAN, RUNS, cells, of_spread
from unstale.report.statistics import spread

_TARGETS = (
    GROUP,
    Column(name="target_accuracy_ratio", head="target", form="g"),
    RUNS,
    Column(name="reached", head="reached it", form=","),
    *of_spread("rounds", "", ",.1f", MEAN),
    *of_spread("elapsed", "s", ",.1f", MEAN, head="time, mean s"),
    *of_spread("updates", "", ",.1f", MEAN),
)
_PAIRS = (
    GROUP,
    Column(name="against", head="against"),
    Column(name="seeds", head="seeds", form=","),
    Column(name="version", head="at version", form=","),
    *of_spread("accuracy_difference", "ratio", "+.4f", INTERVAL, head="accuracy, mean difference"),
    Column(name="more_accurate", head="more accurate in", form=","),
    *of_spread("loss_difference", "nats", "+.4f", INTERVAL, head="loss, mean difference"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The first version of a run that was measured to be so accurate. elapsed_s: since the first task. updates: that
    were aggregated up to it."""

    version: int
    elapsed_s: float
    updates: int


def reached(run: Run, target: float) -> Reached | None:
    """None when no version that was measured is."""
    places = np.flatnonzero(run.evaluations.accuracy_E >= target)
    if not len(places):
        return None
    version = int(run.evaluations.version_E[places[0]])
    return Reached(
        version=version,
        elapsed_s=float(run.evaluations.elapsed_s_E[places[0]]),
        updates=int(run.rounds.updates_R[run.rounds.version_R <= version].sum()),
    )


def section(groups: Sequence[Group], targets: Sequence[float]) -> Section | None:
    """None where there is nothing to compare."""
    tables = []
    if targets:
        tables.append(
            Table(
                name="targets",
                caption="What it took to reach an accuracy: the first version that was measured to have it, so no "
                "finer than evaluations are; means are over the runs that reached it",
                columns=_TARGETS,
                rows=[_target_row(group, target) for target in targets for group in groups],
            )
        )
    pairs, left_out = _pairs(groups)
    if pairs:
        tables.append(
            Table(
                name="pairs",
                caption=f"Differences to {groups[0].label}, run by run of the same seed, at the last version that all "
                "of these runs measured; the interval is that of the mean, by Student's t",
                columns=_PAIRS,
                rows=pairs,
            )
        )
    if not tables and not left_out:
        return None
    return Section(
        name="comparison",
        title="Comparison" if len(groups) > 1 else "Reaching an accuracy",
        sentences=left_out,
        tables=tables,
    )


def _target_row(group: Group, target: float) -> tuple[Cell, ...]:
    found = [there for run in group.runs if (there := reached(run, target)) is not None]
    measures = (
        [there.version for there in found],
        [there.elapsed_s for there in found],
        [there.updates for there in found],
    )
    spreads = [cells(spread(values), MEAN) for values in measures]
    return (group.label, target, len(group.runs), len(found), *chain.from_iterable(spreads))


def _pairs(groups: Sequence[Group]) -> tuple[list[tuple[Cell, ...]], list[str]]:
    """Of each group with the first; and what was left out."""
    rows, left_out = [], []
    for group in groups[1:]:
        pairs, repeated = _matched(group, groups[0])
        if repeated:
            left_out.append(
                f"{group.label} is not compared with {groups[0].label} by seed {listed(repeated)}: a group has several "
                "runs of it."
            )
        if pairs and (row := _pair_row(group, groups[0], pairs)) is not None:
            rows.append(row)
        elif pairs:
            left_out.append(f"{group.label} and {groups[0].label} measured no version in common.")
    return rows, left_out


def _matched(group: Group, first: Group) -> tuple[list[tuple[Run, Run]], list[str]]:
    """Measured runs of the same seed, and the seeds that more than one run of a group has."""
    one, other = ([run for run in of.runs if len(run.evaluations)] for of in (group, first))
    times = [Counter(run.settings.seed for run in runs) for runs in (one, other)]
    common = sorted(times[0].keys() & times[1].keys())
    single = [seed for seed in common if all(of[seed] == 1 for of in times)]
    by_seed = [{run.settings.seed: run for run in runs} for runs in (one, other)]
    return (
        [(by_seed[0][seed], by_seed[1][seed]) for seed in single],
        [str(seed) for seed in common if seed not in single],
    )


def _pair_row(group: Group, first: Group, pairs: Sequence[tuple[Run, Run]]) -> tuple[Cell, ...] | None:
    common = reduce(np.intersect1d, (run.evaluations.version_E for pair in pairs for run in pair))
    if not len(common):
        return None
    version = int(common[-1])
    accuracies, losses = zip(*(_differences(*pair, version) for pair in pairs), strict=True)
    return (
        *(group.label, first.label, len(pairs), version),
        *cells(spread(accuracies), INTERVAL),
        sum(difference > 0 for difference in accuracies),
        *cells(spread(losses), INTERVAL),
    )


def _differences(one: Run, other: Run, version: int) -> Iterator[float]:
    for of in ("accuracy_E", "loss_E"):
        at = [
            float(getattr(run.evaluations, of)[run.evaluations.version_E == version][0])
            for run in (one, other)
        ]
        yield at[0] - at[1]
