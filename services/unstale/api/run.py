"""The result of a run: its tables, metrics, model and pictures, read from its journal."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from unstale.api import plot
from unstale.config import Settings
from unstale.journal.rundir import RunDirectory
from unstale.metrics.named import CLIENTS, formatted
from unstale.metrics.progress import Outcome
from unstale.metrics.spread import means
from unstale.report import export, recorded
from unstale.training.measured import MainMetric


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Run:
    """A run that has ended.

    Attributes:
        settings: With which it ran.
        main: Name of the metric that is shown first, and whether more is better.
        metrics: At the end, by name, the main one first: on the test set, or else means over the clients.
        model: The last version, by names as in `load_state_dict`: parameters that were trained, and float buffers.
        digest: SHA-256 of the last version, in hex.
        seconds: From the first task to the end, in virtual time for a simulation.
        missed: A line with the last value, for a finished run that did not reach `run.until`; else None.
        rounds: A row for each version.
        updates: A row for each accepted or rejected update.
        clients: A row for each client.
        evaluations: A row for each version that was measured, with a column for each metric.
    """

    settings: Settings
    main: MainMetric
    metrics: Mapping[str, float]
    model: Mapping[str, Tensor]
    digest: str
    seconds: float
    missed: str | None
    rounds: pd.DataFrame
    updates: pd.DataFrame
    clients: pd.DataFrame
    evaluations: pd.DataFrame
    recorded: recorded.Run

    def __repr__(self) -> str:
        clock = "s of virtual time" if self.recorded.is_simulated else "s"
        metrics = "".join(f"{name} {formatted(value, '.4f')}, " for name, value in self.metrics.items())
        missed = "" if self.missed is None else f"; {self.missed}"
        return f"<Run {self.recorded.name}: {len(self.rounds)} rounds, {metrics}{self.seconds:,.1f} {clock}{missed}>"

    def plot(self) -> Figure:
        """Draw main metric and loss over time, and the staleness of the updates."""
        return plot.figure(plot.of_one(self))

    def report(self, path: str | Path) -> Path:
        """Write the page of `unstale report`. Raises UserError where that is impossible."""
        return plot.write_page(plot.of_one(self), Path(path))


def read(path: Path, model: Mapping[str, Tensor], outcome: Outcome) -> Run:
    """Read a recorded run. model: its last version. Raises UserError."""
    settings = RunDirectory.look(path).settings
    run = recorded.read(path, f"{settings.policy.name}, seed {settings.seed}")
    frames = export.tables(run)
    evaluations = frames["evaluations"]
    metrics: Mapping[str, float] = {}
    if run.split == CLIENTS:
        metrics = means(run.client_metrics)
    elif len(evaluations):
        last = {name: float(evaluations[recorded.plain_column_of(name)].iloc[-1]) for name in run.metrics}
        metrics = {name: value for name, value in last.items() if not isnan(value)}
    return Run(
        settings=settings,
        main=run.main,
        metrics=metrics,
        model=model,
        digest=outcome.model_digest,
        seconds=run.elapsed_s,
        missed=outcome.missed,
        **frames,
        recorded=run,
    )
