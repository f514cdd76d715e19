"""The metrics that a report has columns and curves of, the main one first. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from unstale.metrics.named import CENTRAL, CLIENTS, direction, two_of
from unstale.report.content import Column
from unstale.report.recorded import Run, column_of
from unstale.training.measured import MainMetric

_ORIGINS = {CENTRAL: "test", CLIENTS: "clients'"}
_UNITS = {"accuracy_ratio": "ratio", "loss_nats": "nats"}


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric of a report."""

    name: str
    column: str  # of data frames and CSV files
    origin: str  # where it was measured: `test`, `clients'` or `training`
    is_higher_better: bool | None  # None where nobody says so

    @property
    def word(self) -> str:
        """The name in names of files and columns."""
        return re.sub(r"[^a-z0-9_.-]", "_", self.name)

    @property
    def unit(self) -> str:
        """The last word of columns in CSV files, "" for none."""
        return _UNITS.get(self.column, "")

    @property
    def title(self) -> str:
        """The name as the first word of a title."""
        return self.name.capitalize() if self.name in ("accuracy", "loss") else self.name

    @property
    def axis(self) -> str:
        return f"{self.origin} {self.name}{self._comma_unit}"

    @property
    def _comma_unit(self) -> str:
        return ", nats" * (self.unit == "nats")

    @property
    def direction(self) -> str:
        """Which values are better, at the end of a sentence; "" where every reader knows, or nobody."""
        if self.is_higher_better is None or self.name in ("accuracy", "loss"):
            return ""
        return f"; {'higher' if self.is_higher_better else 'lower'} is better"

    @property
    def cell(self) -> Column:
        """The column of single values."""
        return Column(self.column, self.name + self._comma_unit, ".4f")

    def is_reached(self, values: pd.Series, target: float) -> pd.Series:
        """Whether each value is as good as a target; higher is better where no direction is known."""
        return values <= target if self.is_higher_better is False else values >= target

    def best(self, values: pd.Series) -> float | None:
        """The best of some values; None where no direction is known."""
        if self.is_higher_better is None:
            return None
        return float(values.max() if self.is_higher_better else values.min())

    def of(self, run: Run) -> pd.Series:
        """The values of a run's evaluations; NaN where it does not have the metric."""
        return run.evaluations.reindex(columns=[self.column])[self.column]

    def of_clients(self, run: Run) -> Any:
        """The values of a run's own evaluations, by client."""
        frame = run.own_evaluations
        return frame.reindex(columns=["client_id", self.column]).groupby("client_id")[self.column]


def measures(runs: Iterable[Run]) -> list[Measure]:
    """The metrics of evaluated versions of some runs; the main one of the first run that has some is first."""
    runs = sorted(runs, key=lambda run: not run.is_evaluated)  # stable
    return _measures([(run.metrics, run.split) for run in runs], runs[0].main)


def own_measures(runs: Iterable[Run]) -> list[Measure]:
    """The same of the clients' own evaluations."""
    runs = sorted(runs, key=lambda run: len(run.own_evaluations) == 0)
    return _measures([(run.own_metrics, CLIENTS) for run in runs], runs[0].main)


def _measures(metrics: Iterable[tuple[Sequence[str], str]], main: MainMetric) -> list[Measure]:
    """metrics: names and split, of each run."""
    by_column: dict[str, Measure] = {}
    for names, split in metrics:
        first = two_of(names)
        for name in (*first, *(name for name in names if name not in first)):
            column = column_of(name, names)
            by_column.setdefault(column, Measure(name, column, _ORIGINS.get(split, split), direction(name, main)))
    return list(by_column.values())
