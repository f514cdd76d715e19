"""A report of runs: read, grouped, and said in sections."""

from collections.abc import Sequence
from pathlib import Path

from unstale.errors import UserError
from unstale.report.content import Report, count
from unstale.report.groups import Group, grouped
from unstale.report.recorded import names_of, read
from unstale.report.sections import (
    accuracy,
    classes,
    clients,
    compared,
    compensation,
    configuration,
    phases,
    rejections,
    staleness,
    summary,
    weights,
)


def report(
    paths: Sequence[Path],
    *,
    by: Sequence[str] = (),
    labels: Sequence[str] = (),
    targets: Sequence[float] = (),
) -> Report:
    """Of run directories, which are only read. by, labels: as in `groups.grouped`. targets: accuracies, shares.

    Raises UserError for what is no run, is damaged, has another format, or does not fit together.
    """
    for target in targets:
        if not 0 < target <= 1:
            raise UserError(f"--target is {target:g}, expected an accuracy > 0 and <= 1, such as 0.9")
    runs = [read(path, name) for path, name in zip(paths, names_of(paths), strict=True)]
    groups = grouped(runs, by, labels)
    found = (
        summary.section(groups),
        compared.section(groups, targets),
        accuracy.section(groups),
        classes.section(groups),
        staleness.section(groups),
        weights.section(groups),
        clients.section(groups),
        phases.section(groups),
        rejections.section(groups),
        compensation.section(groups),
        configuration.section(groups),
    )
    return Report(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        subtitle=_subtitle(groups),
        notes=summary.notes(groups),
        sections=[section for section in found if section is not None],
    )


def _subtitle(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    if len(runs) > 1:
        return f"{count(len(groups), 'group')}: {', '.join(group.legend for group in groups)}"
    of = runs[0].settings
    compensator = f", compensator {of.compensator.name}" if of.compensator.name != "none" else ""
    return (
        f"policy {of.policy.name}{compensator}, trigger {of.trigger.name}, model {of.model.name}, data {of.data.name}, "
        f"{count(of.clients, 'client')}, seed {of.seed}"
    )
