"""Settings of the runs, and their differences."""

from collections.abc import Mapping, Sequence

from unstale.config.keys import KEYS
from unstale.config.settings import Settings
from unstale.journal.rundir import decides
from unstale.report.content import NONE, Column, Section, Table
from unstale.report.groups import Group, differing, values
from unstale.report.recorded import printable
from unstale.report.sections.columns import KEY, RUN

_VALUE, _DEFAULT = Column("value", "value"), Column("default", "default")
_DECIDES = Column("decides", "may change the model")
_CHANGED = (KEY, _VALUE, _DEFAULT, Column("meaning", "meaning"))
_SETTINGS = (RUN, KEY, _VALUE, _DEFAULT, _DECIDES)


def section(groups: Sequence[Group]) -> Section:
    settings = {run.name: values(run.settings) for group in groups for run in group.runs}
    defaults = values(Settings())
    differ = differing(list(settings.values()))
    changed = [
        (
            *(key, printable(value), defaults.get(key, NONE)),
            KEYS[key].description if key in KEYS else "setting of the part",
        )
        for key, value in next(iter(settings.values())).items()
        if key not in differ and value != defaults.get(key)
    ]
    every = [
        (name, key, value, defaults.get(key), decides(key))
        for name, values_of_run in settings.items()
        for key, value in values_of_run.items()
    ]
    whose = "all of these runs have" if len(settings) > 1 else "the run has"
    return Section(
        name="configuration",
        title="Configuration",
        tables=[
            *([_differences(groups, differ, settings)] if len(settings) > 1 else []),
            Table("changed", f"Settings that {whose} and that are not the default", _CHANGED, changed),
            Table("settings", "Every setting of every run", _SETTINGS, every, rows_shown=0),
        ],
    )


def _differences(groups: Sequence[Group], differ: Sequence[str], settings: Mapping[str, Mapping[str, str]]) -> Table:
    def of_group(group: Group, key: str) -> str:
        texts = dict.fromkeys(settings[run.name].get(key, NONE) for run in group.runs)
        return ", ".join(printable(text) for text in texts)

    columns = [Column(f"group_{number}", group.label) for number, group in enumerate(groups, start=1)]
    return Table(
        "differences",
        "Settings in which the runs differ; a dash if a run does not have it",
        (KEY, _DECIDES, *columns),
        [
            (key, decides(key), *(of_group(group, key) for group in groups))
            for key in differ
            if key != "run.directory"  # the names of the runs show it
        ],
    )
