"""The result of a run: its tables, metrics, model and pictures, read from its journal."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from unstale.api import plot
from unstale.config import Settings
from unstale.journal.database import Database
from unstale.journal.replay import RecordedRun
from unstale.metrics.fairness import OwnEvaluations
from unstale.metrics.named import in_order
from unstale.metrics.spread import Report, means, spreads
from unstale.report import recorded
from unstale.report.sections.clients import of_clients
from unstale.server.stats import training_reports
from unstale.training.measured import MainMetric

TEST, CLIENTS, TRAINING = "test", "clients", "training"
"""Splits of metrics: of the server's test examples, or means over the clients' own examples or over their training."""


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
    rounds: pd.DataFrame
    updates: pd.DataFrame
    clients: pd.DataFrame
    evaluations: pd.DataFrame
    recorded: recorded.Run

    def __repr__(self) -> str:
        clock = "s of virtual time" if self.recorded.is_simulated else "s"
        metrics = "".join(f"{name} {value:.4f}, " for name, value in self.metrics.items())
        return f"<Run {self.recorded.name}: {len(self.rounds)} rounds, {metrics}{self.seconds:,.1f} {clock}>"

    def plot(self) -> Figure:
        """Draw main metric and loss over time, and the staleness of the updates."""
        return plot.figure(plot.of_one(self))

    def report(self, path: str | Path) -> Path:
        """Write the page of `unstale report`. Raises UserError where that is impossible."""
        return plot.write_page(plot.of_one(self), Path(path))


def read(path: Path, main: MainMetric, model: Mapping[str, Tensor], digest: str) -> Run:
    """Read a recorded run. main: its main metric. model, digest: its last version. Raises UserError."""
    with RecordedRun(path) as source, source.database.snapshot():
        settings = source.settings
        run = recorded.read(path, f"{settings.policy.name}, seed {settings.seed}")
        evaluations, last = _evaluations(source.database, run, main)
    metrics = _metrics(evaluations.iloc[-1]) if len(evaluations) else {}
    return Run(
        settings=settings,
        main=main,
        metrics=in_order(metrics, main),
        model=model,
        digest=digest,
        seconds=run.elapsed_s,
        rounds=run.rounds,
        updates=run.updates,
        clients=_clients(run, last),
        evaluations=evaluations,
        recorded=run,
    )


def _metrics(row: pd.Series) -> dict[str, float]:
    """The metrics in a row of `Run.evaluations`."""
    return {name: float(value) for name, value in row.drop(["version", "elapsed_s", "split"]).dropna().items()}


Row = tuple[int, float, Mapping[str, float]]
"""Version, seconds since the first task, and metrics."""


def _evaluations(database: Database, run: recorded.Run, main: MainMetric) -> tuple[pd.DataFrame, Mapping[int, Report]]:
    """`Run.evaluations`, and the last own evaluation of each client."""
    started_s = database.started_s() or 0.0
    last: dict[int, Report] = {}
    own = list(_own_evaluations(database, run, started_s, main, last))
    on_test_set = [(row.version, row.at_s - started_s, row.metrics) for row in database.evaluations() if row.metrics]
    split, measured = (TEST, on_test_set) if on_test_set else (CLIENTS, own)
    if not measured:
        split, measured = TRAINING, list(_trained(database, run, main))
    rows = [
        {"version": version, "elapsed_s": at_s, "split": split, **in_order(metrics, main)}
        for version, at_s, metrics in measured
    ]
    return pd.DataFrame(rows, columns=None if rows else ["version", "elapsed_s", "split"]), last


def _own_evaluations(
    database: Database, run: recorded.Run, started_s: float, main: MainMetric, last: dict[int, Report]
) -> Iterator[Row]:
    """For each version at which clients answered, the means over the last answers of all, which `last` collects."""
    answers = OwnEvaluations(run.settings.evaluate_clients_every)
    arrived_s = {row.seq: row.at_s - started_s for row in database.updates_after(0)}
    applied_s = run.rounds.applied_elapsed_s.to_numpy()
    now: tuple[int, float] | None = None
    for row in database.own_evaluations():
        if not answers.is_wanted(row.client_id, row.version):
            continue
        answers.answered(row.client_id, row.version, row.metrics, row.examples)
        version = int(applied_s.searchsorted(arrived_s[row.seq]))
        if now is not None and version > now[0]:
            yield *now, means(spreads(list(last.values()), main))
        last[row.client_id] = Report(row.client_id, row.examples, row.metrics)
        now = version, arrived_s[row.seq]
    if now is not None:
        yield *now, means(spreads(list(last.values()), main))


def _trained(database: Database, run: recorded.Run, main: MainMetric) -> Iterator[Row]:
    """The means over the updates of each version."""
    for version, at_s in zip(run.rounds.version, run.rounds.applied_elapsed_s, strict=True):
        reports = training_reports(update.staged for update in database.updates_of(version))
        yield version, at_s, means(spreads(reports, main))


def _clients(run: recorded.Run, last: Mapping[int, Report]) -> pd.DataFrame:
    """The clients' tasks, updates and weights, and the metrics of their last own evaluation."""
    clients = (
        of_clients(run)
        .drop(columns=["run", "own_accuracy_ratio"], errors="ignore")
        .sort_values("client_id", ignore_index=True)
    )
    own = pd.DataFrame.from_dict({client_id: dict(report.metrics) for client_id, report in last.items()}, "index")
    return clients.join(own, on="client_id") if len(own) else clients
