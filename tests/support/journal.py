"""Records for the tests of the journal, with plain default values."""

from typing import Any

from unstale.journal.rows import (
    Batch,
    CheckpointRow,
    EvaluationRow,
    EventRow,
    Location,
    MemberRow,
    OwnEvaluationRow,
    RoundRow,
    TaskRow,
    UpdateRow,
)
from unstale.learner.updates import StagedUpdate


def event(seq: int, **fields: Any) -> EventRow:
    return EventRow(seq=seq, at_s=seq / 8, kind="TaskFailed", fields=fields)


def task(task_id: int, *, client_id: int = 0, at_s: float = 0.5) -> TaskRow:
    return TaskRow(task_id=task_id, client_id=client_id, number=0, version=0, at_s=at_s)


def accepted(
    seq: int, handle: int, place: Location | None = None, *, client_id: int = 0, loss: float = 0.25
) -> UpdateRow:
    """place: None for an update that is never read."""
    some = Location(segment=1, offset=16, size_bytes=4, checksum=2**64 - 1)
    return _update(seq, client_id, "accepted", None, handle, place or some, loss)


def rejected(seq: int, reason: str = "non-finite", *, client_id: int = 0) -> UpdateRow:
    return _update(seq, client_id, "rejected", reason, None, None, 0.25)


def _update(
    seq: int, client_id: int, outcome: str, reason: str | None, handle: int | None, place: Location | None, loss: float
) -> UpdateRow:
    return UpdateRow(
        seq=seq,
        at_s=seq / 8,
        staged=StagedUpdate(
            client_id=client_id,
            task_id=seq,
            base_version=0,
            num_examples=10,
            batch_examples=5,
            loss=loss,
            local_rate=0.1,
        ),
        outcome=outcome,
        reason=reason,
        handle=handle,
        location=place,
    )


def round_of(version: int, *handles: int, weight: float = 0.5, rate_factor: float = 1.0) -> RoundRow:
    """A round whose members have staleness 0, 1, 2, ..."""
    return RoundRow(
        version=version,
        closed_s=1.0,
        applied_s=1.5,
        wait_s=0.75,
        compensate_s=0.125,
        aggregate_s=0.5,
        learning_rate=0.1,
        rate_factor=rate_factor,
        overflowed=False,
        digest="ab" * 32,
        members=tuple(
            MemberRow(handle=handle, staleness=staleness, weight=weight) for staleness, handle in enumerate(handles)
        ),
    )


def evaluation(version: int, loss: float = 1.25) -> EvaluationRow:
    return EvaluationRow(
        version=version, at_s=2.0, accuracy=0.5, loss=loss, class_accuracy=(0.25, None, 1.0), evaluate_s=0.1
    )


def own_evaluation(seq: int, client_id: int = 0, accuracy: float = 0.25) -> OwnEvaluationRow:
    return OwnEvaluationRow(seq, client_id, version=0, accuracy=accuracy, loss=-0.0, examples=4)


def checkpoint(version: int, seq: int) -> CheckpointRow:
    return CheckpointRow(version=version, seq=seq, file=f"{version:08d}.safetensors", size_bytes=100, at_s=3.0)


def turn(seq: int, handle: int, place: Location | None = None) -> Batch:
    """The records of one update: its verdict, and the next task."""
    return Batch(updates=[accepted(seq, handle, place)], tasks=[task(seq)])
