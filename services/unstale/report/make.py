"""Makes a report of recorded runs from its sections."""

from collections.abc import Sequence
from pathlib import Path

from unstale.errors import UserError
from unstale.report.content import Report, count
from unstale.report.groups import Group, grouped
from unstale.report.measures import Measure, measures
from unstale.report.recorded import names_of, read
from unstale.report.sections import accuracy, clients, configuration, rounds, summary, updates


def report(
    paths: Sequence[Path],
    *,
    by: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    targets: Sequence[float] | None = None,
) -> Report:
    """Return the report of one or more run directories, without writing to them. by, labels: see `groups.grouped`.

    Raises UserError for a directory without a run, with a damaged one or one of another format, and for bad arguments.
    """
    runs = [read(path, name) for path, name in zip(paths, names_of(paths), strict=True)]
    return of_groups(grouped(runs, by or (), labels or ()), targets or ())


def of_groups(groups: Sequence[Group], targets: Sequence[float] = ()) -> Report:
    """Return the report of runs that were read before. Raises UserError for bad targets."""
    runs = [run for group in groups for run in group.runs]
    of = measures(runs)
    _check_targets(targets, of[0])
    sections = (
        summary.section(groups, of),
        summary.comparison(groups, targets, of),
        accuracy.section(groups, of),
        accuracy.by_class(groups),
        updates.staleness(groups),
        updates.weights(groups),
        clients.section(groups),
        rounds.phases(groups),
        updates.rejections(groups),
        rounds.compensation(groups),
        configuration.section(groups),
    )
    return Report(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        subtitle=_subtitle(groups),
        notes=summary.notes(groups),
        sections=[section for section in sections if section is not None],
    )


def _check_targets(targets: Sequence[float], main: Measure) -> None:
    for target in targets:
        if main.name == "accuracy" and not 0 < target <= 1:
            raise UserError(f"--target is {target:g}, expected an accuracy > 0 and <= 1, such as 0.9")


def _subtitle(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    if len(runs) > 1:
        return f"{count(len(groups), 'group')}: {', '.join(group.legend for group in groups)}"
    settings = runs[0].settings
    compensator = "" if settings.compensator.name == "none" else f", compensator {settings.compensator.name}"
    return (
        f"policy {settings.policy.name}{compensator}, trigger {settings.trigger.name}, model {settings.model.name}, "
        f"data {settings.data.name}, {count(settings.clients, 'client')}, seed {settings.seed}"
    )
