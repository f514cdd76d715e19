"""Several runs together: their table, pictures and page."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, overload

import pandas as pd
from matplotlib.figure import Figure
from typing_extensions import override

from unstale.api import plot
from unstale.api.plot import RunGroup
from unstale.api.run import Run
from unstale.config.keys import open_section
from unstale.errors import UserError
from unstale.journal.rundir import decides
from unstale.report import groups
from unstale.report.statistics import spread

PARTS = ("mean", "low", "high")
"""Of the values of a group: the mean, and its 95 % confidence interval (Student's t)."""


class Runs(Sequence[Run]):
    """Runs in order. Those that differ only in their seed, or have the same label, form a group."""

    def __init__(self, runs: Sequence[Run], labels: Sequence[str] | None = None) -> None:
        """labels: one for each run; None for the settings in which groups differ."""
        self._runs = _with_names(runs)
        self._labels = None if labels is None else list(labels)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> "Runs": ...
    @override
    def __getitem__(self, index: int | slice) -> "Run | Runs":
        if isinstance(index, int):
            return self._runs[index]
        return Runs(self._runs[index], None if self._labels is None else self._labels[index])

    @override
    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return "\n".join(["<Runs", *(f"  {run!r}" for run in self._runs), ">"])

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each group: keys in which groups differ, number of runs, mean and 95 % interval of each metric."""
        grouped = self._groups(most=len(self._runs))
        settings = [groups.values(group.runs[0].settings) for group in grouped]
        keys = [key for key in groups.differing(settings) if decides(key) and key != groups.SEED]
        metrics = dict.fromkeys(name for run in self._runs for name in run.metrics)
        return pd.DataFrame([_row(group, keys, metrics) for group in grouped])

    def plot(self) -> Figure:
        """Draw main metric and loss over time, each group with its 95 % band, and the staleness of the updates."""
        return plot.figure(self._groups())

    def report(self, path: str | Path) -> Path:
        """Write the page of `unstale report`. Raises UserError where that is impossible."""
        return plot.write_page(self._groups(), Path(path))

    def _groups(self, most: int = groups.GROUPS_MAX) -> list[RunGroup]:
        if self._labels is not None:
            labels = dict.fromkeys(self._labels)
            members = [
                [run for run, of_run in zip(self._runs, self._labels, strict=True) if of_run == label]
                for label in labels
            ]
            return [RunGroup(label=label, runs=runs) for label, runs in zip(labels, members, strict=True)]
        by_name = {run.recorded.name: run for run in self._runs}
        return [
            RunGroup(label=group.label, runs=[by_name[run.name] for run in group.runs])
            for group in groups.grouped([run.recorded for run in self._runs], most=most)
        ]


def _row(group: RunGroup, keys: Iterable[str], metrics: Iterable[str]) -> dict[str, Any]:
    """The row of a group in `Runs.frame`."""
    return {
        "group": group.label,
        **{key: _value(group.runs[0], key) for key in keys},
        "runs": len(group.runs),
        **{name: cell for metric in metrics for name, cell in _cells(group, metric)},
        "staleness_mean": spread([run.updates.staleness_rounds.astype(float).mean() for run in group.runs]).mean,
        "seconds_mean": spread([run.seconds for run in group.runs]).mean,
    }


def compare(runs: Sequence[Run | Runs], labels: Sequence[str] | None = None) -> Runs:
    """Put runs together. Several runs of one item, such as repetitions with several seeds, have its label.

    Args:
        runs: Results of `simulate`, `serve` or `sweep`.
        labels: One for each item; items with the same label form a group. By default the settings in which they differ.

    Raises:
        UserError: There are no runs, or labels do not fit.
    """
    items = [list(item) if isinstance(item, Runs) else [item] for item in _checked(runs)]
    every = list(chain.from_iterable(items))
    if labels is None:
        return Runs(every)
    if isinstance(labels, str) or len(labels) != len(items):
        raise UserError(f"labels is {labels!r:.80}, expected a name for each of {len(items)} runs")
    return Runs(every, [str(label) for label, item in zip(labels, items, strict=True) for _ in item])


def _checked(runs: Any) -> Iterator[Run | Runs]:
    if isinstance(runs, Run) or not len(runs):
        raise UserError(f"runs is {runs!r:.80}, expected a list of runs")
    for run in runs:
        if not isinstance(run, Run | Runs):
            raise UserError(f"runs has a {type(run).__name__}, expected results of unstale.simulate or unstale.serve")
        yield run


def _with_names(runs: Sequence[Run]) -> list[Run]:
    """The runs, each with a name of its own."""
    times = Counter(run.recorded.name for run in runs)
    seen = Counter[str]()
    named = []
    for run in runs:
        name = run.recorded.name
        seen[name] += 1
        own = name if times[name] == 1 else f"{name} ({seen[name]})"
        named.append(replace(run, recorded=replace(run.recorded, name=own)))
    return named


def _cells(group: RunGroup, metric: str) -> Iterator[tuple[str, float]]:
    values = spread([run.metrics[metric] for run in group.runs if metric in run.metrics])
    for part in PARTS:
        yield f"{metric}_{part}", getattr(values, part)


def _value(run: Run, key: str) -> Any:
    """The value of a key in the settings of a run; None for a setting that its part does not have."""
    section = open_section(key)
    if section is None:
        return attrgetter(key)(run.settings)
    return attrgetter(section)(run.settings).get(key.removeprefix(f"{section}."))
