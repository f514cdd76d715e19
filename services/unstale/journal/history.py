"""The metrics that a run shows at each evaluated version: on the test set, or over the clients where there is none."""

from collections.abc import Iterable, Iterator, Mapping
from math import inf
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


class History:
    """Reads evaluated versions in parts, with the metrics that were shown of them."""

    def __init__(self, main: MainMetric, *, every: int | None) -> None:
        """every: as for `OwnEvaluations`."""
        self._main = main
        self._own = OwnEvaluations(every)
        self._version = -1  # the last evaluated version that was read
        self._seq = 0  # the last update that was read
        self.waits_at: int | None = None  # the version that the last call left for another one

    def read(
        self, database: Database, *, up_to: float = inf, is_complete: bool = True
    ) -> Iterator[tuple[EvaluationRow, Shown]]:
        """Versions after those of earlier calls.

        Args:
            database: Of the run.
            up_to: The last version.
            is_complete: Whether all updates up to the time of the last version are stored; if not, versions whose
                metrics later rows may change are left for another call.
        """
        self.waits_at = None
        evaluations = [row for row in database.evaluations(self._version) if row.version <= up_to]
        if all(len(row.metrics) > 1 for row in evaluations):
            for row in evaluations:
                self._version = row.version
                yield row, shown(row.metrics, {}, {}, self._main)
            return
        answers = {row.seq: row for row in database.own_evaluations(self._seq)}
        later = [(row.seq, row.at_s) for row in database.updates_after(self._seq)][::-1]
        newest_s = later[0][1] if later else -inf
        for row in evaluations:
            if not is_complete and newest_s <= row.at_s:
                self.waits_at = row.version
                return
            while later and later[-1][1] <= row.at_s:
                self._seq, _ = later.pop()
                if answer := answers.get(self._seq):
                    self._own.answered(answer.client_id, answer.version, answer.metrics, answer.examples)
            updates = (update.staged for update in database.updates_of(row.version))
            reports = (self._own.reports, training_reports(updates))
            clients, training = (report_means(of, self._main) for of in reports)
            self._version = row.version
            yield row, shown(row.metrics, clients, training, self._main)


def history(database: Database, main: MainMetric, *, every: int | None) -> Iterator[tuple[EvaluationRow, Shown]]:
    """All evaluated versions with the metrics that were shown of them. every: as for `OwnEvaluations`."""
    return History(main, every=every).read(database)
