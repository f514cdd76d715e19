"""What came out: groups, runs, what became of every update, and what to know before reading on."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import nan

from unstale.report.content import Column, Section, Table, listed
from unstale.report.groups import Group
from unstale.report.recorded import Run, State
from unstale.report.sections.columns import GROUP, MEAN, RUN, RUNS, cells, of_spread
from unstale.report.statistics import spread

_GROUPS = (
    *(GROUP, RUNS),
    Column(name="last_measured_version", head="measured at"),
    *of_spread("accuracy", "ratio", ".4f"),
    *of_spread("loss", "nats", ".4f", MEAN),
    Column(name="elapsed_mean_s", head="time, mean s", form=",.1f"),
)
_RUNS = (
    *(RUN, GROUP),
    Column(name="seed", head="seed", form="d"),
    Column(name="state", head="state"),
    Column(name="version", head="versions", form=","),
    Column(name="rounds_wanted", head="of", form=","),
    Column(name="elapsed_s", head="time, s", form=",.1f"),
    Column(name="last_measured_version", head="measured at", form=","),
    Column(name="accuracy_ratio", head="accuracy", form=".4f"),
    Column(name="best_accuracy_ratio", head="best", form=".4f"),
    Column(name="loss_nats", head="loss", form=".4f"),
    Column(name="overflows", head="steps not taken", form=","),
    Column(name="digest", head="model digest", signs=12),
)
_CONSERVATION = (
    RUN,
    Column(name="received", head="received", form=","),
    Column(name="aggregated", head="= aggregated", form=","),
    Column(name="pending", head="+ pending", form=","),
    Column(name="rejected", head="+ rejected", form=","),
    Column(name="adds_up", head="adds up"),
)


def section(groups: Sequence[Group]) -> Section:
    runs = [(run, group) for group in groups for run in group.runs]
    tables = [
        Table(
            name="groups",
            caption="Groups of runs. Accuracy and loss on the test set are of the last version that each run measured; "
            "std is over runs, with n - 1, and the interval is that of the mean, by Student's t",
            columns=_GROUPS,
            rows=[_group_row(group) for group in groups],
        ),
        Table(
            name="runs",
            caption="Runs, as their directories are now",
            columns=_RUNS,
            rows=[_run_row(run, group) for run, group in runs],
        ),
        Table(
            name="conservation",
            caption="What became of every update that had a verdict: received = aggregated + pending + rejected",
            columns=_CONSERVATION,
            rows=[_conservation_row(run) for run, _ in runs],
        ),
    ]
    return Section(name="summary", title="Summary", tables=tables if len(runs) > 1 else tables[1:])


def notes(groups: Sequence[Group]) -> list[str]:
    """What a reader should know before anything else."""
    runs = [run for group in groups for run in group.runs]
    return [
        *_about_states(runs),
        *_about_measures(runs),
        *_about_data(runs),
        *_about_pools(groups),
        *_about_copies(groups),
    ]


def _about_states(runs: Sequence[Run]) -> Iterator[str]:
    meaning = {
        State.GOES_ON: "the report holds what had happened when it was made",
        State.BROKEN: "its server died and was not started again; nothing that was acknowledged is lost",
        State.OPEN: "this system cannot tell which",
        State.STOPPED: "it can be gone on with",
    }
    for state, words in meaning.items():
        found = [
            f"{run.name} (version {run.version:,} of {run.settings.rounds:,})"
            for run in runs
            if run.state is state
        ]
        if found:
            yield f"{state.value.capitalize()}: {listed(found)}; {words}."
    simulated = [run.name for run in runs if run.is_simulated]
    if len(simulated) == len(runs):
        yield "Simulated: all times are seconds of virtual time."
    elif simulated:
        yield f"Simulated, so that times are virtual and not to be compared with the others': {listed(simulated)}."


def _about_measures(runs: Sequence[Run]) -> Iterator[str]:
    unmeasured = [run.name for run in runs if not len(run.evaluations)]
    if unmeasured:
        yield (
            f"No version was measured on the test set yet: {listed(unmeasured)}; there is no accuracy and no loss of "
            f"{'it' if len(unmeasured) == 1 else 'them'}."
        )


def _about_data(runs: Sequence[Run]) -> Iterator[str]:
    found = dict.fromkeys(
        " ".join(str(part) for part in (run.settings.data.name, run.settings.data.path) if part)
        for run in runs
    )
    if len(found) > 1:
        yield f"The runs are of different data sets, {listed(list(found))}: their accuracies are not to be compared."


def _about_pools(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        if group.pooled:
            yield f"{group.label} pools runs that differ in more than their seed: {listed(group.pooled)}."


def _about_copies(groups: Sequence[Group]) -> Iterator[str]:
    """Runs that are one and the same make a band too narrow."""
    for group in groups:
        for one, other in combinations(group.runs, 2):
            if _is_copy(one, other):
                yield (
                    f"{one.name} and {other.name} made the same versions to the bit: they are one run, counted twice "
                    f"in {group.label}, whose interval is too narrow."
                )


def _is_copy(one: Run, other: Run) -> bool:
    made = min(one.version, other.version)
    return made > 0 and list(one.rounds.digests_R[:made]) == list(other.rounds.digests_R[:made])


def _group_row(group: Group) -> tuple[str | int | float, ...]:
    measured = [run for run in group.runs if len(run.evaluations)]
    versions = sorted({int(run.evaluations.version_E[-1]) for run in measured})
    accuracy = spread([float(run.evaluations.accuracy_E[-1]) for run in measured])
    loss = spread([float(run.evaluations.loss_E[-1]) for run in measured])
    return (
        group.label,
        len(group.runs),
        " to ".join(str(version) for version in dict.fromkeys((*versions[:1], *versions[-1:]))),
        *cells(accuracy),
        *cells(loss, MEAN),
        spread([run.elapsed_s for run in group.runs]).mean,
    )


def _run_row(run: Run, group: Group) -> tuple[str | int | float | None, ...]:
    measured = run.evaluations
    is_measured = len(measured) > 0
    return (
        run.name,
        group.label,
        run.settings.seed,
        run.state.value,
        run.version,
        run.settings.rounds,
        run.elapsed_s,
        int(measured.version_E[-1]) if is_measured else None,
        float(measured.accuracy_E[-1]) if is_measured else nan,
        float(measured.accuracy_E.max()) if is_measured else nan,
        float(measured.loss_E[-1]) if is_measured else nan,
        int(run.rounds.overflowed_R.sum()),
        run.rounds.digests_R[-1] if run.version else None,
    )


def _conservation_row(run: Run) -> tuple[str | int | bool, ...]:
    of = run.conservation
    adds_up = of.received == of.aggregated + of.pending + of.rejected
    return (run.name, of.received, of.aggregated, of.pending, of.rejected, adds_up)
