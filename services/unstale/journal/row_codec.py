"""Records as rows of SQLite's tables, and back. Pure.

Every row carries a checksum, because SQLite has none of its own. It is taken of the values as SQLite gives them
back: no NaN, which it keeps as null, and in columns of type REAL no integers and no negative zero.
"""

import json
import math
from dataclasses import asdict

from unstale.compensators import Compensated, MeasuredError
from unstale.journal import tables
from unstale.journal.rows import (
    CheckpointRow,
    CompensationRow,
    EvaluationRow,
    EventRow,
    MemberRow,
    OwnEvaluationRow,
    Place,
    RoundRow,
    TaskRow,
    UpdateRow,
)
from unstale.journal.tables import Table, Values, signed

_JSON = json.JSONEncoder(separators=(",", ":"))  # `json.dumps` makes a new one each time


META = tables.META
EVENTS = Table("events", ("seq", "at_s", "kind", "fields"))
TASKS = Table("tasks", ("task_id", "client_id", "number", "version", "at_s"))
_ARRIVAL = (
    *("seq", "at_s", "client_id", "task_id", "base_version", "outcome", "reason"),
    *("num_examples", "batch_examples", "loss", "local_rate"),
)
_NORMS = ("norm", "norm_buffers", "norm_extra")
_PLACE = ("handle", "offset", "size_bytes", "checksum")
_KEYS = ("seq", "handle")
_STATE = ("segment", "round", "position", "staleness", "weight")
UPDATES = Table("updates", (*_ARRIVAL, *_NORMS, *_PLACE), state=_STATE, keys=_KEYS)
STATES = Table("updates", (*_KEYS, *_STATE), checksum="state_checksum")
"""Of updates, the columns that change."""
UPDATES_3 = Table("updates", (*_ARRIVAL, *_PLACE), state=_STATE, keys=_KEYS, state_checksum=None)
"""Here and below: as format 3 has them."""
STATES_3 = Table("updates", (*_KEYS, *_STATE), checksum=None)
_ROUND = (
    "version",
    "closed_s",
    "applied_s",
    "wait_s",
    "compensate_s",
    "aggregate_s",
    "learning_rate",
    "rate_factor",
)
ROUNDS = Table("rounds", (*_ROUND, "overflowed", "digest", "compensation"))
EVALUATIONS = Table("evaluations", ("version", "at_s", "accuracy", "loss", "class_accuracy", "evaluate_s"))
OWN_EVALUATIONS = Table("own_evaluations", ("seq", "client_id", "version", "accuracy", "loss", "examples"))
CHECKPOINTS = Table("checkpoints", ("version", "seq", "file", "size_bytes", "at_s"))


def of_event(row: EventRow) -> Values:
    return (row.seq, _real(row.at_s), row.kind, _JSON.encode(row.fields))


def event(values: Values) -> EventRow:
    seq, at_s, kind, fields = values
    return EventRow(seq=seq, at_s=at_s, kind=kind, fields=json.loads(fields))


def of_task(row: TaskRow) -> Values:
    task_id, client_id, number, version, at_s = row
    return (task_id, client_id, number, version, at_s + 0.0)


def task(values: Values) -> TaskRow:
    task_id, client_id, number, version, at_s = values
    return TaskRow(task_id=task_id, client_id=client_id, number=number, version=version, at_s=at_s)


def of_update(row: UpdateRow) -> Values:
    seq, at_s, *others, loss, local_rate, handle, place, norm, norm_buffers, norm_extra = row
    lies: Values = (None, None, None, None)
    if place is not None:
        segment, offset, size_bytes, checksum = place
        lies = (offset, size_bytes, signed(checksum), segment)
    norms = (_optional(norm), _optional(norm_buffers), _optional(norm_extra))
    state = (None, None, None, None)  # in no round yet
    return (seq, at_s + 0.0, *others, _any(loss), local_rate + 0.0, *norms, handle, *lies, *state)


def update(values: Values) -> UpdateRow:
    """From UPDATES. With no place where its segment is deleted."""
    *arrival, norm, norm_buffers, norm_extra, handle, offset, size_bytes, checksum, segment, _, _, _, _ = (
        values
    )
    place = None
    if segment is not None:
        place = Place(segment=segment, offset=offset, size_bytes=size_bytes, checksum=checksum % 2**64)
    return UpdateRow._make((*arrival, handle, place, norm, norm_buffers, norm_extra))


def of_format_3(values: Values) -> Values:
    """Values for UPDATES from those of UPDATES_3."""
    return (*values[:11], None, None, None, *values[11:])


def of_round(row: RoundRow) -> Values:
    times = (row.closed_s, row.applied_s, row.wait_s, row.compensate_s, row.aggregate_s, row.learning_rate)
    compensation = None if row.compensation is None else _of_compensation(row.compensation)
    return (
        row.version,
        *map(_real, times),
        _any(row.rate_factor),
        int(row.overflowed),
        row.digest,
        compensation,
    )


def round_without_members(values: Values) -> RoundRow:
    version, closed_s, applied_s, wait_s, compensate_s, aggregate_s, learning_rate, *others = values
    rate_factor, overflowed, digest, compensation = others
    return RoundRow(
        version=version,
        closed_s=closed_s,
        applied_s=applied_s,
        wait_s=wait_s,
        compensate_s=compensate_s,
        aggregate_s=aggregate_s,
        learning_rate=learning_rate,
        rate_factor=_float(rate_factor),
        overflowed=bool(overflowed),
        digest=digest,
        members=(),
        compensation=None if compensation is None else _compensation(compensation),
    )


def _of_compensation(row: CompensationRow) -> str:
    said = {
        "updates": [asdict(update) for update in row.updates],
        "errors": [asdict(error) for error in row.errors],
        "fallbacks": row.fallbacks,
        "is_kept": row.is_kept,
    }
    return _JSON.encode(said)


def _compensation(text: str) -> CompensationRow:
    said = json.loads(text)
    return CompensationRow(
        updates=tuple(Compensated(**update) for update in said["updates"]),
        errors=tuple(MeasuredError(**error) for error in said["errors"]),
        fallbacks=said["fallbacks"],
        is_kept=said["is_kept"],
    )


def in_round(state: Values, version: int, position: int, member: MemberRow) -> Values:
    """From and for STATES: an update that is a member of a round now."""
    seq, handle, segment, *_ = state
    return (seq, handle, segment, version, position, member.staleness, _any(member.weight))


def waiting(row: UpdateRow) -> Values:
    """For STATES: an accepted update that has just been stored."""
    return (row.seq, row.handle, row.place and row.place.segment, None, None, None, None)


def pending(state: Values) -> Values:
    """From and for STATES: an update that is in no round any more."""
    return (*state[:3], None, None, None, None)


def without_segment(state: Values) -> Values:
    """From and for STATES: an update whose segment is deleted."""
    seq, handle, _, *others = state
    return (seq, handle, None, *others)


def member(state: Values) -> MemberRow:
    """From STATES."""
    _, handle, _, _, _, staleness, weight = state
    return MemberRow(handle=handle, staleness=staleness, weight=_float(weight))


def of_evaluation(row: EvaluationRow) -> Values:
    classes = json.dumps(row.class_accuracy)
    return (row.version, _real(row.at_s), _any(row.accuracy), _any(row.loss), classes, _real(row.evaluate_s))


def evaluation(values: Values) -> EvaluationRow:
    version, at_s, accuracy, loss, class_accuracy, evaluate_s = values
    return EvaluationRow(
        version=version,
        at_s=at_s,
        accuracy=_float(accuracy),
        loss=_float(loss),
        class_accuracy=tuple(json.loads(class_accuracy)),
        evaluate_s=evaluate_s,
    )


def of_own_evaluation(row: OwnEvaluationRow) -> Values:
    seq, client_id, version, accuracy, loss, examples = row
    return (seq, client_id, version, accuracy + 0.0, _any(loss), examples)


def own_evaluation(values: Values) -> OwnEvaluationRow:
    return OwnEvaluationRow(*values)


def of_checkpoint(row: CheckpointRow) -> Values:
    return (row.version, row.seq, row.file, row.size_bytes, _real(row.at_s))


def checkpoint(values: Values) -> CheckpointRow:
    version, seq, file, size_bytes, at_s = values
    return CheckpointRow(version=version, seq=seq, file=file, size_bytes=size_bytes, at_s=at_s)


def _real(value: float) -> float:
    """For a REAL column."""
    return float(value) + 0.0


def _any(value: float) -> float | None:
    """For a column of type ANY."""
    return None if math.isnan(value) else float(value)


def _optional(value: float | None) -> float | None:
    """For a column of type ANY."""
    return None if value is None else _any(value)


def _float(value: float | None) -> float:
    """From a column of type ANY."""
    return math.nan if value is None else value
