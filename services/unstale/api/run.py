"""The result of a run: its tables, metrics, model and pictures, read from its journal."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
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
from unstale.training.measured import MainMetric

TEST, CLIENTS, TRAINING = "test", "clients", "training"
"""Splits of metrics: of the server's test examples, or means over the clients' own test examples or their training."""


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
        own = _own_evaluations(source.database, settings)
        evaluations = _evaluations(source.database, run, own, main)
    last = {report.client_id: report for *_, report in own}
    metrics = _metrics(evaluations.iloc[-1]) if len(evaluations) else {}
    if len(evaluations) and evaluations.split.iloc[-1] == CLIENTS:
        metrics = means(spreads(list(last.values()), main))
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


def _own_evaluations(database: Database, settings: Settings) -> list[tuple[int, Report]]:
    """Version and metrics of each evaluation by a client that was requested, in order of arrival."""
    answers = OwnEvaluations(settings.evaluate_clients_every)
    requested = []
    for row in database.own_evaluations():
        if answers.is_wanted(row.client_id, row.version):
            answers.answered(row.client_id, row.version, row.metrics, row.examples)
            requested.append((row.version, Report(row.client_id, row.examples, row.metrics)))
    return requested


def _evaluations(
    database: Database, run: recorded.Run, own: Iterable[tuple[int, Report]], main: MainMetric
) -> pd.DataFrame:
    """Metrics by version: on the test set; without one, means over the clients; without these, over their training."""
    started_s = database.started_s() or 0.0
    split = TEST
    measured = [(row.version, row.at_s - started_s, row.metrics) for row in database.evaluations() if row.metrics]
    if not measured:
        applied_s = {0: 0.0, **dict(zip(run.rounds.version, run.rounds.applied_elapsed_s, strict=True))}
        split, reports = (CLIENTS, list(own)) if own else (TRAINING, list(_trained(database)))
        measured = [
            (version, applied_s.get(version, run.elapsed_s), means(spreads([report for _, report in of_version], main)))
            for version, of_version in groupby(sorted(reports, key=lambda report: report[0]), key=lambda one: one[0])
        ]
    rows = [
        {"version": version, "elapsed_s": at_s, "split": split, **in_order(metrics, main)}
        for version, at_s, metrics in measured
    ]
    return pd.DataFrame(rows, columns=None if rows else ["version", "elapsed_s", "split"])


def _trained(database: Database) -> Iterator[tuple[int, Report]]:
    """Version and metrics of the training of each aggregated update."""
    for row in database.rounds():
        for update in database.updates_of(row.version):
            staged = update.staged
            yield row.version, Report(staged.client_id, staged.num_examples, {**staged.metrics, "loss": staged.loss})


def _clients(run: recorded.Run, last: Mapping[int, Report]) -> pd.DataFrame:
    """The clients' tasks, updates and weights, and the metrics of their last own evaluation."""
    clients = (
        of_clients(run)
        .drop(columns=["run", "own_accuracy_ratio"], errors="ignore")
        .sort_values("client_id", ignore_index=True)
    )
    own = pd.DataFrame.from_dict({client_id: dict(report.metrics) for client_id, report in last.items()}, "index")
    return clients.join(own, on="client_id") if len(own) else clients
