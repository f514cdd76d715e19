"""The metrics that a run shows at each evaluated version: on the test set, or over the clients where there is none."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from unstale.journal.database import Database
from unstale.journal.rows import EvaluationRow
from unstale.learner.updates import StagedUpdate
from unstale.metrics.fairness import OwnEvaluations
from unstale.metrics.named import CENTRAL, CLIENTS, TRAINING, in_order
from unstale.metrics.spread import Report, report_means
from unstale.training.measured import MainMetric


class Shown(NamedTuple):
    """The metrics of a version, the main one first. split: where they were measured."""

    split: str
    metrics: Mapping[str, float]
    training_loss: float | None = None  # of the last round, beside a single metric


def shown(
    central: Mapping[str, float], clients: Mapping[str, float], training: Mapping[str, float], main: MainMetric
) -> Shown:
    """The metrics on the test set, else the means over the clients' own evaluations, else those of the training."""
    splits = ((CENTRAL, central), (CLIENTS, clients), (TRAINING, training))
    split, metrics = next(((split, metrics) for split, metrics in splits if metrics), splits[0])
    training_loss = training.get("loss") if len(metrics) == 1 and "loss" not in metrics else None
    return Shown(split, in_order(metrics, main), training_loss)


def training_reports(updates: Iterable[StagedUpdate]) -> list[Report]:
    """The metrics of the training of updates, of which the loss is one."""
    return [
        Report(update.client_id, update.num_examples, {**update.metrics, "loss": update.loss}) for update in updates
    ]


def history(database: Database, main: MainMetric, *, every: int | None) -> Iterator[tuple[EvaluationRow, Shown]]:
    """Evaluated versions with the metrics that were shown of them. every: as for `OwnEvaluations`."""
    evaluations = list(database.evaluations())
    if all(len(row.metrics) > 1 for row in evaluations):
        yield from ((row, shown(row.metrics, {}, {}, main)) for row in evaluations)
        return
    own = OwnEvaluations(every)
    arrived_s = {row.seq: row.at_s for row in database.updates_after(0)}
    later = list(database.own_evaluations())[::-1]
    for row in evaluations:
        while later and arrived_s[later[-1].seq] <= row.at_s:
            answer = later.pop()
            own.answered(answer.client_id, answer.version, answer.metrics, answer.examples)
        updates = (update.staged for update in database.updates_of(row.version))
        clients, training = (report_means(reports, main) for reports in (own.reports, training_reports(updates)))
        yield row, shown(row.metrics, clients, training, main)
