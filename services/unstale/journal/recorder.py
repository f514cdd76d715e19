"""Records the events of a coordinator.

Consequences of an event may be sent only after `commit`, so that a restarted server knows all that it has sent.
"""

from collections.abc import Sequence
from typing import NamedTuple

from unstale.coordinator import actions, events
from unstale.coordinator.actions import Action
from unstale.coordinator.machine import LEASE, Coordinator
from unstale.journal import records
from unstale.journal.journal import Journal
from unstale.journal.rows import (
    CompensationRow,
    EvaluationRow,
    MemberRow,
    OwnEvaluationRow,
    RoundRow,
    TaskRow,
    UpdateRow,
)
from unstale.learner.learner import RoundResult
from unstale.learner.row_checks import Norms
from unstale.learner.updates import StagedUpdate
from unstale.training.measured import Measured
from unstale_proto.messages import OwnEvaluation

_OF_A_TASK = (events.TaskFailed, events.TaskRaised, events.TaskDeclined, events.TaskLost, events.TaskExpired)


class IncomingUpdate(NamedTuple):
    """An update that has arrived, with everything that is recorded about it."""

    event: events.UpdateArrived  # for the coordinator; its handle is that of the staged row
    staged: StagedUpdate  # kept until the round
    row: memoryview = memoryview(b"")  # bytes of the staged row, empty without one
    norms: Norms | None = None  # of the vectors, None where they were not measured
    evaluation: OwnEvaluation | None = None  # of the task's model on the client's own test examples
    payload_bytes: int = 0  # size of the payload on the wire


class Recorder:
    """Handles events by the coordinator and records them. Protocol thread only."""

    def __init__(self, coordinator: Coordinator, journal: Journal | None) -> None:
        """journal: None for a run that is not stored."""
        self.coordinator = coordinator
        self._journal = journal
        self._closed_s = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the run is stored."""
        return self._journal is not None

    def handle(self, event: events.Event) -> list[Action]:
        """Handle any event except UpdateArrived and RoundApplied."""
        if self._journal is None or not records.is_recorded(event):
            return self.coordinator.handle(event)
        if isinstance(event, _OF_A_TASK) and not self.coordinator.awaits(event.client_id, event.task_id):
            return self.coordinator.handle(event)  # changes nothing, and may be repeated without limit
        ends_leases = isinstance(event, events.TimerFired) and event.timer == LEASE
        silent = self.coordinator.leases.expired(event.at_s) if ends_leases else ()
        return self._record(self._journal, event, silent)

    def update(self, incoming: IncomingUpdate) -> list[Action]:
        """Handle the arrival of an update."""
        event = incoming.event
        journal = self._journal
        result = self.coordinator.handle(event)
        if journal is None:
            return result
        verdict = result[0]
        assert isinstance(verdict, actions.Acknowledge)
        if verdict.outcome is actions.Outcome.DUPLICATE or verdict.reason == actions.Reason.UNKNOWN_TASK:
            return result  # changes nothing, and may be repeated without limit
        seq = journal.next_seq()
        accepted = verdict.outcome is actions.Outcome.ACCEPTED
        journal.batch.updates.append(
            UpdateRow(
                seq,
                event.at_s,
                incoming.staged,
                verdict.outcome.value,
                verdict.reason,
                incoming.norms,
                handle=event.handle if accepted else None,
                location=journal.append(incoming.row, event.handle) if accepted else None,
            )
        )
        own = incoming.evaluation
        if accepted and own is not None:
            journal.batch.own_evaluations.append(
                OwnEvaluationRow(seq, event.client_id, event.base_version, own.by_name, own.examples)
            )
        self._record_actions(journal, result, event.at_s)
        return result

    def round_applied(
        self,
        event: events.RoundApplied,
        result: RoundResult,
        *,
        digest: str,
        wait_s: float,
        compensate_s: float,
        aggregate_s: float,
    ) -> list[Action]:
        """Handle an applied round."""
        journal = self._journal
        if journal is None:
            return self.coordinator.handle(event)
        making = self.coordinator.making
        assert making is not None
        made, compensation = result.compensation, None
        if made is not None:
            compensation = CompensationRow(
                tuple(made.updates), tuple(made.errors), dict(made.fallbacks), is_kept=made.made is not None
            )
        journal.batch.rounds.append(
            RoundRow(
                version=result.version,
                closed_s=self._closed_s,
                applied_s=event.at_s,
                wait_s=wait_s,
                compensate_s=compensate_s,
                aggregate_s=aggregate_s,
                learning_rate=result.learning_rate,
                rate_factor=result.rate_factor,
                overflowed=result.overflowed,
                digest=digest,
                compensation=compensation,
                metrics=result.metrics,
                members=tuple(
                    MemberRow(contribution.handle, contribution.staleness, weight)
                    for contribution, weight in zip(making, result.weights_K, strict=True)
                ),
            )
        )
        return self._record(journal, event)

    def evaluated(self, version: int, at_s: float, evaluation: Measured, *, evaluate_s: float) -> None:
        """Record the evaluation of a version."""
        if self._journal is not None:
            self._journal.batch.evaluations.append(evaluation_row(version, at_s, evaluation, evaluate_s))

    def commit(self, *, durable: bool = False) -> None:
        """Store recorded events. durable: survives a power failure too. On a UserError none is stored."""
        if self._journal is not None:
            self._journal.commit(durable=durable)

    def give_up(self, why: str) -> str:
        """Store the reason why the run is given up; returns the error message for it."""
        return why if self._journal is None else self._journal.give_up(why)

    def due_s(self, now_s: float) -> float | None:
        """Latest time of the next `commit`; None for never."""
        in_s = None if self._journal is None else self._journal.sync_in_s
        return None if in_s is None else now_s + in_s

    def has_room(self, size_bytes: int) -> bool:
        """Whether an update of this size can be stored."""
        return self._journal is None or self._journal.has_room(size_bytes)

    def _record(self, journal: Journal, event: events.Event, silent: Sequence[int] = ()) -> list[Action]:
        journal.note(event, silent)
        result = self.coordinator.handle(event)
        self._record_actions(journal, result, event.at_s)
        return result

    def _record_actions(self, journal: Journal, result: Sequence[Action], at_s: float) -> None:
        for action in result:
            if isinstance(action, actions.SendTask):
                journal.batch.tasks.append(task_row(action, at_s))
            elif isinstance(action, actions.ApplyRound):
                self._closed_s = at_s
                journal.settle()  # the learner may read rows from disk, and frees their memory


def evaluation_row(version: int, at_s: float, evaluation: Measured, evaluate_s: float) -> EvaluationRow:
    """The record of an evaluation."""
    return EvaluationRow(version, at_s, evaluation.metrics, evaluation.class_accuracy, evaluate_s)


def task_row(action: actions.SendTask, at_s: float) -> TaskRow:
    """The record of a task."""
    return TaskRow(action.task_id, action.client_id, action.number, action.version, at_s)
