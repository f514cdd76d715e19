"""What runs were told, and in what they differ."""

from collections.abc import Mapping, Sequence

from unstale.config.keys import KEYS
from unstale.config.settings import Settings
from unstale.journal.rundir import decides
from unstale.report.content import NONE, Cell, Column, Section, Table
from unstale.report.groups import Group
from unstale.report.recorded import Run, printable
from unstale.report.sections.columns import RUN
from unstale.report.settings import differing, values

_SETTINGS = (
    RUN,
    Column(name="key", head="key"),
    Column(name="value", head="value"),
    Column(name="default", head="default"),
    Column(name="decides", head="may change the model"),
)


def section(groups: Sequence[Group]) -> Section:
    runs = [run for group in groups for run in group.runs]
    of_runs = {run.name: values(run.settings) for run in runs}
    tables = [_differences(groups, of_runs)] if len(runs) > 1 else []
    tables += [_shared(runs, of_runs), _every(runs, of_runs)]
    return Section(name="configuration", title="Configuration", tables=tables)


def _differences(groups: Sequence[Group], of_runs: Mapping[str, Mapping[str, str]]) -> Table:
    keys = [
        key for key in differing(list(of_runs.values())) if key != "run.directory"
    ]  # the runs' names say it
    columns = [Column(name=f"group_{place}", head=group.label) for place, group in enumerate(groups, start=1)]
    rows: list[tuple[Cell, ...]] = [
        (key, decides(key), *(_of_group(group, key, of_runs) for group in groups)) for key in keys
    ]
    return Table(
        name="differences",
        caption="Settings in which the runs differ; one that a run does not have is a dash",
        columns=(
            Column(name="key", head="key"),
            Column(name="decides", head="may change the model"),
            *columns,
        ),
        rows=rows,
    )


def _of_group(group: Group, key: str, of_runs: Mapping[str, Mapping[str, str]]) -> str:
    """Every value that its runs have."""
    found = dict.fromkeys(of_runs[run.name].get(key, NONE) for run in group.runs)
    return ", ".join(printable(value) for value in found)


def _shared(runs: Sequence[Run], of_runs: Mapping[str, Mapping[str, str]]) -> Table:
    """What all runs have in common and is not the default."""
    defaults = values(Settings())
    first = of_runs[runs[0].name]
    differ = {*differing(list(of_runs.values()))}
    rows = [
        (key, printable(value), defaults.get(key, NONE), _meaning(key))
        for key, value in first.items()
        if key not in differ and value != defaults.get(key)
    ]
    whose = "all of these runs have" if len(runs) > 1 else "the run has"
    return Table(
        name="changed",
        caption=f"Settings that {whose} and that are not the default",
        columns=(
            Column(name="key", head="key"),
            Column(name="value", head="value"),
            Column(name="default", head="default"),
            Column(name="meaning", head="meaning"),
        ),
        rows=rows,
    )


def _meaning(key: str) -> str:
    known = KEYS.get(key)
    return "setting of the part" if known is None else known.description


def _every(runs: Sequence[Run], of_runs: Mapping[str, Mapping[str, str]]) -> Table:
    defaults = values(Settings())
    return Table(
        name="settings",
        caption="Every setting of every run",
        columns=_SETTINGS,
        rows=[
            (run.name, key, value, defaults.get(key), decides(key))
            for run in runs
            for key, value in of_runs[run.name].items()
        ],
        rows_shown=0,
    )
