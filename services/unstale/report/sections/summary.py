"""Summary and comparison of runs, the check that every update is counted, and the notes at the top of the page."""

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import chain, combinations

import pandas as pd

from unstale.report.content import Cell, Column, Section, Table, listed
from unstale.report.groups import Group
from unstale.report.measures import Measure
from unstale.report.recorded import Run, State
from unstale.report.sections.columns import GROUP, INTERVAL, MEAN, RUN, RUNS, SPREAD, cells, of_spread, versions
from unstale.report.statistics import spread

COLUMNS_MAX = 4  # metrics with columns in these tables
_CONSERVATION = (
    *(RUN, Column("received", "received", ",")),
    *(Column("aggregated", "= aggregated", ","), Column("pending", "+ pending", ",")),
    *(Column("rejected", "+ rejected", ","), Column("adds_up", "adds up")),
)


def _group_columns(of: Sequence[Measure]) -> tuple[Column, ...]:
    spreads = [of_spread(one.word, one.unit, ".4f", SPREAD if one is of[0] else MEAN) for one in of]
    columns = (GROUP, RUNS, Column("last_measured_version", "measured at"), *chain.from_iterable(spreads))
    return (*columns, Column("elapsed_mean_s", "mean time, s", ",.1f"))


def _run_columns(of: Sequence[Measure]) -> tuple[Column, ...]:
    main, *others = of
    return (
        *(RUN, GROUP, Column("seed", "seed", "d"), Column("state", "state")),
        *(Column("version", "versions", ","), Column("rounds_wanted", "of", ",")),
        *(Column("elapsed_s", "time, s", ",.1f"), Column("last_measured_version", "measured at", ",")),
        *(main.cell, Column(f"best_{main.column}", "best", ".4f")),
        *(Column(one.column, one.name, ".4f") for one in others),
        *(Column("overflows", "steps skipped", ","), Column("digest", "model digest", signs=12)),
    )


def _target_columns(main: Measure) -> tuple[Column, ...]:
    return (
        *(GROUP, Column(f"target_{main.column}", "target", "g"), RUNS, Column("reached", "reached it", ",")),
        *of_spread("rounds", "", ",.1f", MEAN),
        *of_spread("elapsed", "s", ",.1f", MEAN, head="mean time, s"),
        *of_spread("updates", "", ",.1f", MEAN),
    )


def _pair_columns(of: Sequence[Measure]) -> tuple[Column, ...]:
    better = ("more_accurate", "more accurate in") if of[0].name == "accuracy" else ("better", "better in")
    differences = [
        of_spread(f"{one.word}_difference", one.unit, "+.4f", INTERVAL, head=f"{one.name}, mean difference")
        for one in of
    ]
    return (
        *(GROUP, Column("against", "against"), Column("seeds", "seeds", ","), Column("version", "at version", ",")),
        *(*differences[0], Column(*better, ","), *chain.from_iterable(differences[1:])),
    )


def section(groups: Sequence[Group], of: Sequence[Measure]) -> Section:
    """Return the results of groups and runs. of: metrics, the main one first."""
    of = of[:COLUMNS_MAX]
    runs = [(run, group) for group in groups for run in group.runs]
    measured = "Accuracy and loss on the test set" if of[0].axis == "test accuracy" else "Metrics"
    tables = [
        Table(
            "groups",
            f"Groups of runs. {measured} are of the last version that each run measured; std is "
            "over runs, with n - 1, and the interval is that of the mean (Student's t)",
            _group_columns(of),
            [_group_row(group, of) for group in groups],
        ),
        Table("runs", "Runs", _run_columns(of), [_run_row(run, group, of) for run, group in runs]),
        Table(
            "conservation",
            "Updates by verdict: received = aggregated + pending + rejected",
            _CONSERVATION,
            [_conservation_row(run) for run, _ in runs],
        ),
    ]
    return Section(name="summary", title="Summary", tables=tables if len(runs) > 1 else tables[1:])


def notes(groups: Sequence[Group]) -> list[str]:
    """Return warnings about the runs."""
    runs = [run for group in groups for run in group.runs]
    return [*_state_notes(runs), *_data_notes(runs), *chain.from_iterable(map(_group_notes, groups))]


_STATE_REMARKS = {
    State.RUNNING: "versions made after this report are not in it",
    State.BROKEN: "its server died and was not restarted; no acknowledged update is lost",
    State.UNKNOWN: "this system cannot distinguish the two",
    State.STOPPED: "a server can resume it",
}


def _state_notes(runs: Sequence[Run]) -> Iterator[str]:
    for state, remark in _STATE_REMARKS.items():
        names = [
            f"{run.name} (version {run.version:,} of {run.settings.rounds:,})" for run in runs if run.state is state
        ]
        if names:
            yield f"{state.value.capitalize()}: {listed(names)}; {remark}."
    simulated = [run.name for run in runs if run.is_simulated]
    if len(simulated) == len(runs):
        yield "Simulated: all times are seconds of virtual time."
    elif simulated:
        yield f"Simulated, with virtual times that are not comparable with those of the others: {listed(simulated)}."


def _data_notes(runs: Sequence[Run]) -> Iterator[str]:
    unmeasured = [run.name for run in runs if not run.is_evaluated]
    if unmeasured:
        yield f"Without an evaluation on the test set, so without accuracy and loss: {listed(unmeasured)}."
    if len({run.split for run in runs if run.is_evaluated}) > 1:
        yield "Some runs were measured on a test set and others by their clients: their metrics are not comparable."
    data_sets = dict.fromkeys(" ".join(filter(None, (run.settings.data.name, run.settings.data.path))) for run in runs)
    if len(data_sets) > 1:
        yield f"The runs use different data sets, {listed(list(data_sets))}: their accuracies are not comparable."


def _group_notes(group: Group) -> Iterator[str]:
    if group.pooled:
        yield f"{group.label} pools runs that differ in more than their seed: {listed(group.pooled)}."
    for one, other in combinations(group.runs, 2):
        versions = min(one.version, other.version)
        if versions and one.rounds.digest[:versions].equals(other.rounds.digest[:versions]):
            yield (
                f"{one.name} and {other.name} made bit-identical versions: they are the same run, counted twice, and "
                f"the interval of {group.label} is too narrow."
            )


def _group_row(group: Group, of: Sequence[Measure]) -> tuple[Cell, ...]:
    last = [run.evaluations.iloc[-1] for run in group.evaluated]
    return (
        *(group.label, len(group.runs), versions(int(evaluation.version) for evaluation in last)),
        *chain.from_iterable(
            cells(spread([float(one.of(run).iloc[-1]) for run in group.evaluated]), SPREAD if one is of[0] else MEAN)
            for one in of
        ),
        spread([run.elapsed_s for run in group.runs]).mean,
    )


def _run_row(run: Run, group: Group, of: Sequence[Measure]) -> tuple[Cell, ...]:
    measured: tuple[Cell, ...] = (None, None, *[None] * len(of))
    if run.is_evaluated:
        main, *others = (float(one.of(run).iloc[-1]) for one in of)
        measured = (int(run.evaluations.version.iloc[-1]), main, of[0].best(of[0].of(run)), *others)
    return (
        *(run.name, group.label, run.settings.seed, run.state.value, run.version, run.settings.rounds),
        *(run.elapsed_s, *measured, int(run.rounds.overflowed.sum())),
        run.rounds.digest.iloc[-1] if run.version else None,
    )


def _conservation_row(run: Run) -> tuple[Cell, ...]:
    updates = run.conservation
    adds_up = updates.received == updates.aggregated + updates.pending + updates.rejected
    return (run.name, updates.received, updates.aggregated, updates.pending, updates.rejected, adds_up)


# --- comparison: costs to reach an accuracy, and differences between runs of the same seed ---


def comparison(groups: Sequence[Group], targets: Sequence[float], of: Sequence[Measure]) -> Section | None:
    """Return the costs to reach targets and the differences between groups, or None without any."""
    of = of[:COLUMNS_MAX]
    pairs, left_out = _compared_by_seed(groups, of)
    target_of = "accuracy" if of[0].name == "accuracy" else f"value of {of[0].name}, or a better one"
    target_table = Table(
        "targets",
        f"Rounds, time and updates until the first evaluated version with this {target_of}, means over the runs that "
        "reached it",
        _target_columns(of[0]),
        [_target_row(group, target, of[0]) for target in targets for group in groups],
    )
    pair_table = Table(
        "pairs",
        f"Differences to {groups[0].label} between runs of the same seed, at the last version that all of these runs "
        "measured; the interval is that of the mean (Student's t)",
        _pair_columns(of),
        pairs,
    )
    tables = [table for table in (target_table, pair_table) if table.rows]
    if not tables and not left_out:
        return None
    reaching = "Reaching an accuracy" if of[0].name == "accuracy" else f"Reaching a value of {of[0].name}"
    title = "Comparison" if len(groups) > 1 else reaching
    return Section(name="comparison", title=title, sentences=left_out, tables=tables)


def _target_row(group: Group, target: float, main: Measure) -> tuple[Cell, ...]:
    reached = [numbers for run in group.runs if (numbers := _reached(run, target, main))]
    measures = zip(*reached, strict=True) if reached else [()] * 3
    spreads = [cell for values in measures for cell in cells(spread(values), MEAN)]
    return (group.label, target, len(group.runs), len(reached), *spreads)


def _reached(run: Run, target: float, main: Measure) -> tuple[int, float, int] | None:
    """Return version, seconds and aggregated updates of the first evaluation that reaches a target, or None."""
    reached = run.evaluations[main.is_reached(main.of(run), target)]
    if reached.empty:
        return None
    version = int(reached.version.iloc[0])
    updates = run.rounds.updates[run.rounds.version <= version].sum()
    return version, float(reached.elapsed_s.iloc[0]), int(updates)


def _compared_by_seed(groups: Sequence[Group], of: Sequence[Measure]) -> tuple[list[tuple[Cell, ...]], list[str]]:
    """Compare each group with the first. Return rows, and a sentence for each comparison that is left out."""
    rows: list[tuple[Cell, ...]] = []
    left_out = []
    of_first = _evaluations_by_seed(groups[0], of)
    for group in groups[1:]:
        problem = f"{group.label} is not compared with {groups[0].label}"
        of_group = _evaluations_by_seed(group, of)
        seeds = sorted(of_group.keys() & of_first.keys())
        repeated = [seed for seed in seeds if len(of_group[seed]) > 1 or len(of_first[seed]) > 1]
        if repeated:
            left_out.append(f"{problem} by seed {listed(list(map(str, repeated)))}: a group has several runs of it.")
        pairs = [(of_group[seed][0], of_first[seed][0]) for seed in seeds if seed not in repeated]
        if not pairs:
            continue
        versions = reduce(pd.Index.intersection, (evaluations.index for pair in pairs for evaluations in pair))
        if versions.empty:
            left_out.append(f"{problem}: no version was evaluated in all of their runs.")
            continue
        differences = pd.DataFrame([one.loc[versions.max()] - other.loc[versions.max()] for one, other in pairs])
        main, *others = (cells(spread(differences[one.column].to_numpy()), INTERVAL) for one in of)
        better = _times_better(differences[of[0].column], of[0])
        rows.append(
            (
                *(group.label, groups[0].label, len(pairs), int(versions.max())),
                *(*main, better, *chain.from_iterable(others)),
            )
        )
    return rows, left_out


def _times_better(differences: pd.Series, main: Measure) -> int | None:
    """Return in how many pairs the group is better than the first; None where no direction is known."""
    if main.is_higher_better is None:
        return None
    return int((differences > 0 if main.is_higher_better else differences < 0).sum())


def _evaluations_by_seed(group: Group, of: Sequence[Measure]) -> dict[int, list[pd.DataFrame]]:
    """Return a data frame for each run by its seed: its metrics, with the version as index."""
    evaluations: dict[int, list[pd.DataFrame]] = {}
    for run in group.evaluated:
        by_version = run.evaluations.set_index("version").reindex(columns=[one.column for one in of])
        evaluations.setdefault(run.settings.seed, []).append(by_version)
    return evaluations
