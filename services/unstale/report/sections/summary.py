"""Results of groups and runs, conservation of updates, and notes at the top of the page."""

from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from math import nan

from unstale.report.content import Cell, Column, Section, Table, listed
from unstale.report.groups import Group
from unstale.report.recorded import Run, State
from unstale.report.sections.columns import ACCURACY, GROUP, MEAN, RUN, RUNS, cells, of_spread, versions
from unstale.report.statistics import spread

_GROUPS = (
    *(GROUP, RUNS, Column("last_measured_version", "measured at")),
    *of_spread("accuracy", "ratio", ".4f"),
    *of_spread("loss", "nats", ".4f", MEAN),
    Column("elapsed_mean_s", "mean time, s", ",.1f"),
)
_RUNS = (
    *(RUN, GROUP, Column("seed", "seed", "d"), Column("state", "state")),
    *(Column("version", "versions", ","), Column("rounds_wanted", "of", ",")),
    *(Column("elapsed_s", "time, s", ",.1f"), Column("last_measured_version", "measured at", ",")),
    *(ACCURACY, Column("best_accuracy_ratio", "best", ".4f"), Column("loss_nats", "loss", ".4f")),
    *(Column("overflows", "steps skipped", ","), Column("digest", "model digest", signs=12)),
)
_CONSERVATION = (
    *(RUN, Column("received", "received", ",")),
    *(Column("aggregated", "= aggregated", ","), Column("pending", "+ pending", ",")),
    *(Column("rejected", "+ rejected", ","), Column("adds_up", "adds up")),
)


def section(groups: Sequence[Group]) -> Section:
    runs = [(run, group) for group in groups for run in group.runs]
    tables = [
        Table(
            "groups",
            "Groups of runs. Accuracy and loss on the test set are of the last version that each run measured; std is "
            "over runs, with n - 1, and the interval is that of the mean (Student's t)",
            _GROUPS,
            [_group_row(group) for group in groups],
        ),
        Table("runs", "Runs", _RUNS, [_run_row(run, group) for run, group in runs]),
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


_MEANING = {
    State.GOES_ON: "the report shows its state when the report was made",
    State.BROKEN: "its server died and was not restarted; no acknowledged update is lost",
    State.OPEN: "this system cannot tell which",
    State.STOPPED: "a server can resume it",
}


def _state_notes(runs: Sequence[Run]) -> Iterator[str]:
    for state, meaning in _MEANING.items():
        names = [
            f"{run.name} (version {run.version:,} of {run.settings.rounds:,})" for run in runs if run.state is state
        ]
        if names:
            yield f"{state.value.capitalize()}: {listed(names)}; {meaning}."
    simulated = [run.name for run in runs if run.is_simulated]
    if len(simulated) == len(runs):
        yield "Simulated: all times are seconds of virtual time."
    elif simulated:
        yield f"Simulated, with virtual times that are not comparable with those of the others: {listed(simulated)}."


def _data_notes(runs: Sequence[Run]) -> Iterator[str]:
    unmeasured = [run.name for run in runs if not run.is_evaluated]
    if unmeasured:
        yield f"Without an evaluation on the test set, so without accuracy and loss: {listed(unmeasured)}."
    data_sets = dict.fromkeys(
        " ".join(str(part) for part in (run.settings.data.name, run.settings.data.path) if part) for run in runs
    )
    if len(data_sets) > 1:
        yield f"The runs use different data sets, {listed(list(data_sets))}: their accuracies are not comparable."


def _group_notes(group: Group) -> Iterator[str]:
    if group.pooled:
        yield f"{group.label} pools runs that differ in more than their seed: {listed(group.pooled)}."
    for one, other in combinations(group.runs, 2):
        versions = min(one.version, other.version)
        if versions and one.rounds.digest[:versions].equals(other.rounds.digest[:versions]):
            yield (
                f"{one.name} and {other.name} made bit-identical versions: they are the same run, counted twice in "
                f"{group.label}, whose interval is too narrow."
            )


def _group_row(group: Group) -> tuple[Cell, ...]:
    last = [run.evaluations.iloc[-1] for run in group.evaluated]
    return (
        *(group.label, len(group.runs), versions(int(evaluation.version) for evaluation in last)),
        *cells(spread([evaluation.accuracy_ratio for evaluation in last])),
        *cells(spread([evaluation.loss_nats for evaluation in last]), MEAN),
        spread([run.elapsed_s for run in group.runs]).mean,
    )


def _run_row(run: Run, group: Group) -> tuple[Cell, ...]:
    evaluations = run.evaluations
    version, accuracy, best, loss = (
        (
            int(evaluations.version.iloc[-1]),
            float(evaluations.accuracy_ratio.iloc[-1]),
            float(evaluations.accuracy_ratio.max()),
            float(evaluations.loss_nats.iloc[-1]),
        )
        if run.is_evaluated
        else (None, nan, nan, nan)
    )
    return (
        *(run.name, group.label, run.settings.seed, run.state.value, run.version, run.settings.rounds),
        *(run.elapsed_s, version, accuracy, best, loss, int(run.rounds.overflowed.sum())),
        run.rounds.digest.iloc[-1] if run.version else None,
    )


def _conservation_row(run: Run) -> tuple[Cell, ...]:
    updates = run.conservation
    adds_up = updates.received == updates.aggregated + updates.pending + updates.rejected
    return (run.name, updates.received, updates.aggregated, updates.pending, updates.rejected, adds_up)
