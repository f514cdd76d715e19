"""Counts of a run, for its progress and outcome; on a server also for metrics and the status page."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from typing_extensions import override

from unstale.compensators.compensator import UNCHANGED
from unstale.coordinator import actions
from unstale.journal.database import Database
from unstale.journal.recorder import IncomingUpdate
from unstale.learner.bounds import NormBounds
from unstale.learner.learner import Compensation
from unstale.learner.row_checks import Norms
from unstale.metrics import observe
from unstale.metrics.fairness import OwnEvaluations
from unstale.metrics.observe import Observation
from unstale.metrics.progress import Outcome, Progress, Tally
from unstale.server.commands import Applied, Evaluated, NotSaved, Saved
from unstale.server.slot_scheduler import Counts
from unstale.server.status import Status
from unstale_proto.errors import Reason

log = logging.getLogger("unstale.server")


class RunStats:
    """Counts of a run, on a server and in a simulation. Protocol thread only."""

    def __init__(
        self, rounds: int, on_progress: Callable[[Progress], None], evaluate_clients_every: int | None
    ) -> None:
        self.own_evaluations = OwnEvaluations(evaluate_clients_every)
        self.tally = Tally(rounds)
        self._on_progress = on_progress
        self._clients_at: dict[int, dict[str, int]] = {}  # at the start of each unfinished evaluation, by version

    def flush(self) -> None:
        """Hook for subclasses: record counts that were collected since the last call."""

    def model_sent(self, payload_bytes: int) -> None:
        """Hook for subclasses: count a model that was sent."""

    def judged(self, verdict: actions.Acknowledge, incoming: IncomingUpdate, bounds: NormBounds) -> None:  # noqa: ARG002
        """Count the verdict on an update."""
        if verdict.outcome is actions.Outcome.ACCEPTED:
            self.tally.accepted()
            if incoming.evaluation is not None:
                base_version, accuracy = incoming.event.base_version, incoming.evaluation.accuracy
                self.own_evaluations.answered(verdict.client_id, base_version, accuracy)

    def applied(self, applied: Applied, wait_s: float) -> None:  # noqa: ARG002
        """Count an applied round. wait_s: duration of the open round."""
        result = applied.result
        self.tally.applied(result.staleness, overflowed=result.overflowed)
        if result.compensation is not None:
            for note in self.tally.news(result.compensation.notes):
                log.warning("%s", note)

    def on_evaluation_started(self, version: int, clients: Mapping[str, int]) -> None:
        """Store the number of clients in each state, for the progress at this version."""
        self._clients_at[version] = dict(clients)

    def evaluated(self, evaluated: Evaluated, at_s: float) -> None:
        """Report the progress at a version whose evaluation has ended."""
        version, evaluation = evaluated.version, evaluated.evaluation
        clients = self._clients_at.pop(version)
        self._on_progress(self.tally.evaluated(version, evaluation.accuracy, evaluation.loss, clients, at_s))

    def ended(
        self, finish: actions.Finish, version: int, updates: Mapping[str, int], digest: str, at_s: float
    ) -> Outcome:
        """The outcome of the run. updates: Number by outcome. digest: Of the last version."""
        return self.tally.ended(finish.reason, version, updates, digest, at_s, self.own_evaluations.fairness)


class ServerStats(RunStats):
    """Also records metrics and the status. record: stores observations as metrics."""

    def __init__(
        self,
        *,
        rounds: int,
        record: Callable[[Iterable[Observation]], None],
        on_progress: Callable[[Progress], None],
        evaluate_clients_every: int | None,
        status: Status | None = None,
    ) -> None:
        super().__init__(rounds, on_progress, evaluate_clients_every)
        self._record = record
        self._status = status or Status(clock=float)  # always 0.0
        self._transfers: tuple[Counts, Counts] | None = None
        self._observed: list[Observation] = []  # of updates and models, until `flush`
        self._norms: list[Norms] = []  # of updates, until `flush`
        self._bounds: Norms | None = None  # at the last of these updates

    def restore(self, database: Database) -> None:
        """Count the rounds and evaluations of earlier servers of this run."""
        started_s = database.started_s()
        if started_s is not None:
            self.tally.started(started_s)
            self._status.started(started_s)
        for row in database.rounds():
            staleness = [member.staleness for member in row.members]
            weights = [member.weight for member in row.members]
            self.tally.applied(staleness, overflowed=row.overflowed)
            durations_s = {"wait_s": row.wait_s, "compensate_s": row.compensate_s, "aggregate_s": row.aggregate_s}
            self._status.applied(
                row.version, staleness, weights, **durations_s, overflowed=row.overflowed, at_s=row.applied_s
            )
            if row.compensation is not None:
                compensation = row.compensation
                self._status.compensated(row.version, compensation.updates, compensation.errors, compensation.fallbacks)
        for measured in database.evaluations():
            version, accuracy, loss, at_s = measured.version, measured.accuracy, measured.loss, measured.at_s
            self.tally.evaluated(version, accuracy, loss, {}, at_s)
            self._status.evaluated(version, accuracy, loss, evaluate_s=measured.evaluate_s, at_s=at_s)
            self._record(observe.measured(accuracy, loss, measured.class_accuracy))
        for own in database.own_evaluations():
            self.own_evaluations.answered(own.client_id, own.version, own.accuracy)
        self._record_fairness()

    def refused(self, reason: Reason) -> None:
        """Count a message that was answered with an error or dropped."""
        self._status.refused(reason)
        self._record([observe.refused(reason)])

    def quarantined(self) -> None:
        """Count a quarantine of a client."""
        self._status.quarantined()
        self._record([observe.quarantined()])

    @override
    def model_sent(self, payload_bytes: int) -> None:
        self._status.started()
        self._observed.append(observe.model_sent(payload_bytes))

    def transfers(self, *, uploads: Counts, downloads: Counts) -> None:
        """Record the numbers of active, waiting and resumed transfers."""
        if (uploads, downloads) != self._transfers:
            self._record([*observe.transfers("received", *uploads), *observe.transfers("sent", *downloads)])
            self._transfers = uploads, downloads

    @override
    def judged(self, verdict: actions.Acknowledge, incoming: IncomingUpdate, bounds: NormBounds) -> None:
        super().judged(verdict, incoming, bounds)
        if incoming.norms is not None:
            self._norms.append(incoming.norms)
            self._bounds = bounds.bounds(incoming.staged.local_rate)
        if verdict.outcome is actions.Outcome.REJECTED:
            self._status.rejected(verdict.reason or "")
        elif verdict.outcome is actions.Outcome.ACCEPTED and incoming.evaluation is not None:
            self._record_fairness()
        self._observed += observe.verdict(verdict.outcome, verdict.reason, incoming.payload_bytes)

    @override
    def flush(self) -> None:
        # Recording takes time, so observations of many updates and models are recorded together.
        if self._observed:
            observed, self._observed = self._observed, []
            norms, self._norms = self._norms, []
            observed += observe.norms(norms, self._bounds)
            self._record(observed)

    @override
    def applied(self, applied: Applied, wait_s: float) -> None:
        super().applied(applied, wait_s)
        result = applied.result
        durations_s = {"wait_s": wait_s, "compensate_s": applied.compensate_s, "aggregate_s": applied.aggregate_s}
        version, staleness, weights = result.version, result.staleness, result.weights_K
        self._status.applied(version, staleness, weights, **durations_s, overflowed=result.overflowed)
        if result.overflowed:
            log.warning("version %d: the step left the range of float32 and was skipped", version)
        self._record(
            observe.round_applied(
                version,
                staleness,
                weights,
                **durations_s,
                device_memory_bytes=applied.device_memory_bytes,
                overflowed=result.overflowed,
            )
        )
        if result.compensation is not None:
            self._compensated(version, result.compensation)

    @override
    def evaluated(self, evaluated: Evaluated, at_s: float) -> None:
        result, evaluate_s = evaluated.evaluation, evaluated.evaluate_s
        self._record(observe.evaluated(result.accuracy, result.loss, result.class_accuracy, evaluate_s=evaluate_s))
        self._status.evaluated(evaluated.version, result.accuracy, result.loss, evaluate_s=evaluate_s, at_s=at_s)
        super().evaluated(evaluated, at_s)

    def checkpointed(self, item: Saved | NotSaved) -> None:
        """Count a checkpoint that was stored, or that did not fit on the disk."""
        if isinstance(item, Saved):
            self._status.saved(item.version, item.checkpoint_s)
            self._record([observe.phase("checkpoint", item.checkpoint_s)])
        else:
            self._record([observe.checkpoint_left_out()])

    @override
    def ended(
        self, finish: actions.Finish, version: int, updates: Mapping[str, int], digest: str, at_s: float
    ) -> Outcome:
        self._status.ended(digest, at_s)
        return super().ended(finish, version, updates, digest, at_s)

    def _compensated(self, version: int, result: Compensation) -> None:
        self._status.compensated(version, result.updates, result.errors, result.fallbacks)
        methods = Counter(update.method for update in result.updates if update.method != UNCHANGED)
        errors: dict[str, list[tuple[float, float]]] = {}
        for error in result.errors:
            errors.setdefault(error.method, []).append((error.l1, error.cosine))
        iterations = sum(update.iterations or 0 for update in result.updates)
        self._record(observe.compensated(methods, iterations, result.fallbacks, errors))

    def _record_fairness(self) -> None:
        fairness = self.own_evaluations.fairness
        if fairness is not None:
            self._record(observe.own_evaluations(fairness))
