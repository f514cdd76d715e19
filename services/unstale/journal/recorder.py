"""The coordinator, and everything that happens to it written down.

What follows from an event may be said to others only after `commit`: then it is as durable as the run wants it, and a
server that dies and comes back knows what it has said.
"""

from collections.abc import Sequence
from typing import NamedTuple

from unstale.coordinator import actions, events
from unstale.coordinator.actions import Action, Contribution
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
from unstale.training.evaluate import Evaluation
from unstale_proto.messages import OwnEvaluation

_OF_A_TASK = (events.TaskFailed, events.TaskDeclined, events.TaskLost, events.TaskExpired)


class IncomingUpdate(NamedTuple):
    """An update that has arrived, with everything that is recorded about it.

    Attributes:
        event: For the coordinator; its handle is that of the staged row.
        staged: Fields of the header that are kept until the round.
        row: Bytes of the staged row, empty without one.
        norms: Of the vectors, None where they were not measured.
        evaluation: Of the task's model on the client's own test examples, None without one.
        payload_bytes: Size of the payload on the wire.
    """

    event: events.UpdateArrived
    staged: StagedUpdate
    row: memoryview = memoryview(b"")
    norms: Norms | None = None
    evaluation: OwnEvaluation | None = None
    payload_bytes: int = 0


class Recorder:
    """Handles events as the coordinator does, and notes them. Protocol thread only.

    journal: None for a run that leaves nothing behind.
    """

    def __init__(self, coordinator: Coordinator, journal: Journal | None) -> None:
        self.coordinator = coordinator
        self._journal = journal
        self._closed_s = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the run can be taken up again."""
        return self._journal is not None

    def handle(self, event: events.Event) -> list[Action]:
        """Any event but an update and a round."""
        if self._journal is None or not records.is_recorded(event):
            return self.coordinator.handle(event)
        if isinstance(event, _OF_A_TASK) and not self.coordinator.awaits(event.client_id, event.task_id):
            return self.coordinator.handle(event)  # says nothing new, and may be said again and again
        ends_leases = isinstance(event, events.TimerFired) and event.timer == LEASE
        silent = self.coordinator.leases.expired(event.at_s) if ends_leases else ()
        return self._noted(self._journal, event, silent)

    def update(self, incoming: IncomingUpdate) -> list[Action]:
        """Handle an update, and note it unless it changes nothing."""
        event = incoming.event
        journal = self._journal
        if journal is None:
            return self.coordinator.handle(event)
        following = self.coordinator.handle(event)
        verdict = following[0]
        assert isinstance(verdict, actions.Acknowledge)
        if verdict.outcome is actions.Outcome.DUPLICATE or verdict.reason == actions.Reason.UNKNOWN_TASK:
            return following  # changes nothing, and may come again and again
        seq = journal.next_seq()
        accepted = verdict.outcome is actions.Outcome.ACCEPTED
        staged = incoming.staged
        norm, norm_buffers, norm_extra = incoming.norms or (None, None, None)
        journal.batch.updates.append(
            UpdateRow(
                seq,
                event.at_s,
                event.client_id,
                event.task_id,
                event.base_version,
                verdict.outcome.value,
                verdict.reason,
                staged.num_examples,
                staged.batch_examples,
                staged.loss,
                staged.local_rate,
                handle=event.handle if accepted else None,
                place=journal.append(incoming.row, event.handle) if accepted else None,
                norm=norm,
                norm_buffers=norm_buffers,
                norm_extra=norm_extra,
            )
        )
        own = incoming.evaluation
        if accepted and own is not None:
            journal.batch.own_evaluations.append(
                OwnEvaluationRow(
                    seq, event.client_id, event.base_version, own.accuracy, own.loss, own.examples
                )
            )
        self._note_actions(journal, following, event.at_s)
        return following

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
        """A round was applied."""
        journal = self._journal
        if journal is None:
            return self.coordinator.handle(event)
        making = self.coordinator.making
        assert making is not None
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
                members=_members(making, result),
                compensation=_compensation(result),
            )
        )
        return self._noted(journal, event)

    def evaluated(self, version: int, at_s: float, evaluation: Evaluation, *, evaluate_s: float) -> None:
        """A version was measured."""
        if self._journal is not None:
            self._journal.batch.evaluations.append(evaluation_row(version, at_s, evaluation, evaluate_s))

    def commit(self, *, durable: bool = False) -> None:
        """Make what was noted durable, against a power failure too. Raises UserError when it cannot be: then none of it
        was."""
        if self._journal is not None:
            self._journal.commit(durable=durable)

    def give_up(self, why: str) -> str:
        """Store that the run was given up, so that the next start says so.

        Args:
            why: Message about the reason.

        Returns:
            The message for people, with the way out where the run is kept in a directory.
        """
        return why if self._journal is None else self._journal.give_up(why)

    def due_s(self, now_s: float) -> float | None:
        """When `commit` is to be called at the latest; None for never. now_s: the time now, on the same clock."""
        in_s = None if self._journal is None else self._journal.sync_in_s
        return None if in_s is None else now_s + in_s

    def has_room(self, size_bytes: int) -> bool:
        """Whether an update of this size can be stored."""
        return self._journal is None or self._journal.has_room(size_bytes)

    def _noted(self, journal: Journal, event: events.Event, silent: Sequence[int] = ()) -> list[Action]:
        journal.note(event, silent)
        following = self.coordinator.handle(event)
        self._note_actions(journal, following, event.at_s)
        return following

    def _note_actions(self, journal: Journal, following: Sequence[Action], at_s: float) -> None:
        for action in following:
            if isinstance(action, actions.SendTask):
                journal.batch.tasks.append(task_row(action, at_s))
            elif isinstance(action, actions.ApplyRound):
                self._closed_s = at_s
                journal.settle()  # whoever makes the round may read rows from there, and gives their memory back


def evaluation_row(version: int, at_s: float, evaluation: Evaluation, evaluate_s: float) -> EvaluationRow:
    """The record of a measurement."""
    return EvaluationRow(
        version=version,
        at_s=at_s,
        accuracy=evaluation.accuracy,
        loss=evaluation.loss,
        class_accuracy=tuple(evaluation.class_accuracy),
        evaluate_s=evaluate_s,
    )


def task_row(action: actions.SendTask, at_s: float) -> TaskRow:
    """The record of a task that is given."""
    return TaskRow(
        task_id=action.task_id,
        client_id=action.client_id,
        number=action.number,
        version=action.version,
        at_s=at_s,
    )


def _compensation(result: RoundResult) -> CompensationRow | None:
    told = result.compensation
    if told is None:
        return None
    return CompensationRow(
        updates=tuple(told.updates),
        errors=tuple(told.errors),
        fallbacks=dict(told.fallbacks),
        is_kept=told.made is not None,
    )


def _members(making: Sequence[Contribution], result: RoundResult) -> tuple[MemberRow, ...]:
    return tuple(
        MemberRow(handle=contribution.handle, staleness=contribution.staleness, weight=weight)
        for contribution, weight in zip(making, result.weights_K, strict=True)
    )
