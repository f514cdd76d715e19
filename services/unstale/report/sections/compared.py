"""Comparison of groups: costs to reach an accuracy, and differences between runs of the same seed."""

from collections.abc import Sequence
from functools import reduce
from math import nan

import numpy as np

from unstale.report.content import Cell, Column, Section, Table, listed
from unstale.report.groups import Group
from unstale.report.recorded import Run
from unstale.report.sections.columns import GROUP, INTERVAL, MEAN, RUNS, cells, of_spread
from unstale.report.statistics import spread

_TARGETS = (
    GROUP,
    Column("target_accuracy_ratio", "target", "g"),
    RUNS,
    Column("reached", "reached it", ","),
    *of_spread("rounds", "", ",.1f", MEAN),
    *of_spread("elapsed", "s", ",.1f", MEAN, head="mean time, s"),
    *of_spread("updates", "", ",.1f", MEAN),
)
_PAIRS = (
    *(GROUP, Column("against", "against"), Column("seeds", "seeds", ",")),
    Column("version", "at version", ","),
    *of_spread("accuracy_difference", "ratio", "+.4f", INTERVAL, head="accuracy, mean difference"),
    Column("more_accurate", "more accurate in", ","),
    *of_spread("loss_difference", "nats", "+.4f", INTERVAL, head="loss, mean difference"),
)


def section(groups: Sequence[Group], targets: Sequence[float]) -> Section | None:
    """Return the section, or None if there is nothing to compare."""
    tables = []
    if targets:
        tables.append(
            Table(
                "targets",
                "Rounds, time and updates until the first evaluated version with this accuracy, means over the runs "
                "that reached it",
                _TARGETS,
                [_target_row(group, target) for target in targets for group in groups],
            )
        )
    pairs, left_out = _pairs(groups)
    if pairs:
        tables.append(
            Table(
                "pairs",
                f"Differences to {groups[0].label} between runs of the same seed, at the last version that all "
                "of these runs measured; the interval is that of the mean (Student's t)",
                _PAIRS,
                pairs,
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
    reached = [numbers for run in group.runs if (numbers := _reached(run, target))]
    measures = zip(*reached, strict=True) if reached else [()] * 3
    spreads = [cell for values in measures for cell in cells(spread(values), MEAN)]
    return (group.label, target, len(group.runs), len(reached), *spreads)


def _reached(run: Run, target: float) -> tuple[int, float, int] | None:
    """Return version, seconds and aggregated updates at the first evaluation with an accuracy, or None."""
    accurate = run.evaluations[run.evaluations.accuracy_ratio >= target]
    if accurate.empty:
        return None
    version = int(accurate.version.iloc[0])
    updates = run.rounds.updates[run.rounds.version <= version].sum()
    return version, float(accurate.elapsed_s.iloc[0]), int(updates)


def _pairs(groups: Sequence[Group]) -> tuple[list[tuple[Cell, ...]], list[str]]:
    """Compare each group with the first. Return rows, and sentences on comparisons that are left out."""
    rows, left_out = [], []
    for group in groups[1:]:
        names = f"{group.label} is not compared with {groups[0].label}"
        pairs, repeated = _matched(group, groups[0])
        if repeated:
            left_out.append(f"{names} by seed {listed(repeated)}: a group has several runs of it.")
        if not pairs:
            continue
        versions = reduce(np.intersect1d, (run.evaluations.version for pair in pairs for run in pair))
        if len(versions):
            rows.append(_pair_row(group, groups[0], pairs, int(versions[-1])))
        else:
            left_out.append(f"{names}: no version was evaluated in all of their runs.")
    return rows, left_out


def _matched(group: Group, first: Group) -> tuple[list[tuple[Run, Run]], list[str]]:
    """Return pairs of runs of the same seed, and the seeds that a group has several times."""
    one, other = _by_seed(group), _by_seed(first)
    common = sorted(one.keys() & other.keys())
    repeated = [seed for seed in common if len(one[seed]) > 1 or len(other[seed]) > 1]
    pairs = [(one[seed][0], other[seed][0]) for seed in common if seed not in repeated]
    return pairs, [str(seed) for seed in repeated]


def _by_seed(group: Group) -> dict[int, list[Run]]:
    runs: dict[int, list[Run]] = {}
    for run in group.evaluated:
        runs.setdefault(run.settings.seed, []).append(run)
    return runs


def _pair_row(group: Group, first: Group, pairs: Sequence[tuple[Run, Run]], version: int) -> tuple[Cell, ...]:
    def differences(column: str) -> list[float]:
        return [_at(one, version, column) - _at(other, version, column) for one, other in pairs]

    accuracies = differences("accuracy_ratio")
    return (
        *(group.label, first.label, len(pairs), version),
        *cells(spread(accuracies), INTERVAL),
        sum(difference > 0 for difference in accuracies),
        *cells(spread(differences("loss_nats")), INTERVAL),
    )


def _at(run: Run, version: int, column: str) -> float:
    return next(iter(run.evaluations[column][run.evaluations.version == version]), nan)
