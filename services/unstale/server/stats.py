"""What a run comes to: what is counted, shown while it goes on, and said at its end."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from unstale.compensators.compensator import UNCHANGED
from unstale.coordinator import actions
from unstale.journal.database import Database
from unstale.learner.learner import Compensation
from unstale.learner.row_checks import Norms
from unstale.metrics import observe
from unstale.metrics.fairness import OwnEvaluations
from unstale.metrics.observe import Observation
from unstale.metrics.progress import Outcome, Progress, Tally
from unstale.server.commands import Applied, Evaluated, Saved
from unstale.server.status import Status
from unstale_proto.errors import Reason
from unstale_proto.messages import OwnEvaluation, Update

Transferred = tuple[int, int, int]
"""Active, waiting, resumed since."""

log = logging.getLogger("unstale.server")


class ServerStats:
    """Protocol thread only.

    record: takes what is observed. on_progress: told of every evaluation. evaluate_clients_every: rounds between
    evaluations by the clients; None for none. status: what is shown to whoever looks; None where nobody can.
    """

    def __init__(
        self,
        *,
        rounds: int,
        record: Callable[[Iterable[Observation]], None],
        on_progress: Callable[[Progress], None],
        evaluate_clients_every: int | None,
        status: Status | None = None,
    ) -> None:
        self.own_evaluations = OwnEvaluations(evaluate_clients_every)
        self.tally = Tally(rounds)
        self._record = record
        self._on_progress = on_progress
        self._status = Status(clock=float) if status is None else status
        self._accepted = 0  # updates that the tally was not told of yet
        self._transfers: tuple[Transferred, Transferred] | None = None
        self._observed: list[Observation] = []  # of updates and models, and not recorded yet
        self._norms: list[Norms] = []  # likewise
        self._bounds: Norms | None = None
        self._clients_at: dict[int, dict[str, int]] = {}

    def restore(self, database: Database) -> None:
        """Count what servers of this run that died have done."""
        started_s = database.started_s()
        if started_s is not None:
            self.tally.started(started_s)
            self._status.started(started_s)
        for row in database.rounds():
            staleness = [member.staleness for member in row.members]
            self.tally.applied(staleness, overflowed=row.overflowed)
            self._status.applied(
                row.version,
                staleness,
                [member.weight for member in row.members],
                wait_s=row.wait_s,
                compensate_s=row.compensate_s,
                aggregate_s=row.aggregate_s,
                overflowed=row.overflowed,
                at_s=row.applied_s,
            )
            if row.compensation is not None:
                told = row.compensation
                self._status.compensated(row.version, told.updates, told.errors, told.fallbacks)
        for measured in database.evaluations():
            self.tally.evaluated(measured.version, measured.accuracy, measured.loss, {}, measured.at_s)
            self._status.evaluated(
                measured.version,
                measured.accuracy,
                measured.loss,
                evaluate_s=measured.evaluate_s,
                at_s=measured.at_s,
            )
            self._record(observe.measured(measured.accuracy, measured.loss, measured.class_accuracy))
        for own in database.own_evaluations():
            self.own_evaluations.answered(own.client_id, own.version, own.accuracy)
        self._record_fairness()

    def refused(self, reason: Reason) -> None:
        """A message was answered with an error, or not at all."""
        self._status.refused(reason)
        self._record([observe.refused(reason)])

    def quarantined(self) -> None:
        """A client is kept out for a while."""
        self._status.quarantined()
        self._record([observe.quarantined()])

    def model_sent(self, payload_bytes: int) -> None:
        """A model went out."""
        self._status.started()
        self._observed.append(observe.model_sent(payload_bytes))

    def transfers(self, *, uploads: Transferred, downloads: Transferred) -> None:
        """How many transfers come and wait now, and how many have gone on from what was there since the last time."""
        if (uploads, downloads) != self._transfers:
            self._record([*observe.transfers("received", *uploads), *observe.transfers("sent", *downloads)])
            self._transfers = uploads, downloads

    def judged(
        self,
        verdict: actions.Acknowledge,
        update: Update,
        payload_bytes: int,
        norms: Norms | None = None,
        bounds: Norms | None = None,
    ) -> None:
        """An update was judged. norms: of its vectors, None where they were not measured. bounds: on norms, then."""
        if norms is not None:
            self._norms.append(norms)
            self._bounds = bounds
        if verdict.outcome is actions.Outcome.ACCEPTED:
            self._accepted += 1
            if update.evaluation is not None:
                self._add_own_evaluation(verdict.client_id, update.base_version, update.evaluation)
        elif verdict.outcome is actions.Outcome.REJECTED:
            self._status.rejected(verdict.reason or "")
        self._observed += observe.verdict(verdict.outcome, verdict.reason, payload_bytes)

    def flush(self) -> None:
        """Record what updates and models came to since the last time: together, since recording is what takes time."""
        if self._observed:
            observed, self._observed = self._observed, []
            norms, self._norms = self._norms, []
            observed += observe.norms(norms, self._bounds)
            self._record(observed)

    def applied(self, applied: Applied, wait_s: float) -> None:
        """A round is a version. wait_s: for how long it was open."""
        result = applied.result
        self.tally.applied(result.staleness, overflowed=result.overflowed)
        self._status.applied(
            result.version,
            result.staleness,
            result.weights_K,
            wait_s=wait_s,
            compensate_s=applied.compensate_s,
            aggregate_s=applied.aggregate_s,
            overflowed=result.overflowed,
        )
        if result.overflowed:
            log.warning("version %d: its step left the range of float32 and was not taken", result.version)
        self._record(
            observe.round_applied(
                result.version,
                result.staleness,
                result.weights_K,
                wait_s=wait_s,
                compensate_s=applied.compensate_s,
                aggregate_s=applied.aggregate_s,
                device_memory_bytes=applied.device_memory_bytes,
                overflowed=result.overflowed,
            )
        )
        if result.compensation is not None:
            told = result.compensation
            self._status.compensated(result.version, told.updates, told.errors, told.fallbacks)
            self._compensated(told)

    def on_evaluation_started(self, version: int, clients: Mapping[str, int]) -> None:
        """A version is to be measured. clients: number by state."""
        self._clients_at[version] = dict(clients)

    def evaluated(self, evaluated: Evaluated, at_s: float) -> None:
        """A version was measured."""
        evaluation = evaluated.evaluation
        self._record(
            observe.evaluated(
                evaluation.accuracy,
                evaluation.loss,
                evaluation.class_accuracy,
                evaluate_s=evaluated.evaluate_s,
            )
        )
        self._status.evaluated(
            evaluated.version,
            evaluation.accuracy,
            evaluation.loss,
            evaluate_s=evaluated.evaluate_s,
            at_s=at_s,
        )
        clients = self._clients_at.pop(evaluated.version)
        self.tally.accepted(self._accepted)
        self._accepted = 0
        self._on_progress(
            self.tally.evaluated(evaluated.version, evaluation.accuracy, evaluation.loss, clients, at_s)
        )

    def saved(self, saved: Saved) -> None:
        """A checkpoint is on disk."""
        self._status.saved(saved.version, saved.checkpoint_s)
        self._record([observe.phase("checkpoint", saved.checkpoint_s)])

    def not_saved(self) -> None:
        """A checkpoint was left out."""
        self._record([observe.checkpoint_left_out()])

    def ended(
        self, finish: actions.Finish, version: int, updates: Mapping[str, int], digest: str, at_s: float
    ) -> Outcome:
        """How the run ended."""
        self._status.ended(digest, at_s)
        return self.tally.ended(finish.reason, version, updates, digest, at_s, self.own_evaluations.fairness)

    def _compensated(self, told: Compensation) -> None:
        for note in self.tally.news(told.notes):
            log.warning("%s", note)
        methods = Counter(update.method for update in told.updates if update.method != UNCHANGED)
        errors: dict[str, list[tuple[float, float]]] = {}
        for error in told.errors:
            errors.setdefault(error.method, []).append((error.l1, error.cosine))
        iterations = sum(update.iterations or 0 for update in told.updates)
        self._record(observe.compensated(methods, iterations, told.fallbacks, errors))

    def _add_own_evaluation(self, client_id: int, version: int, evaluation: OwnEvaluation) -> None:
        self.own_evaluations.answered(client_id, version, evaluation.accuracy)
        self._record_fairness()

    def _record_fairness(self) -> None:
        fairness = self.own_evaluations.fairness
        if fairness is not None:
            self._record(observe.own_evaluations(fairness))
