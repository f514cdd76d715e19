"""Converts records to rows of SQLite's tables and back. Pure.

A row has a checksum of its values as SQLite returns them: without NaN, which becomes null, and in REAL columns without
integers and negative zero.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

from unstale.compensators import Compensated, MeasuredError
from unstale.journal.rows import (
    CheckpointRow,
    CompensationRow,
    EvaluationRow,
    EventRow,
    Location,
    MemberRow,
    OwnEvaluationRow,
    RoundRow,
    TaskRow,
    UpdateRow,
)
from unstale.journal.tables import Table, Values, signed

Record = TypeVar("Record")

_JSON = json.JSONEncoder(separators=(",", ":"))  # `json.dumps` creates a new one each time


@dataclass(frozen=True, slots=True)
class Codec(Generic[Record]):
    """A table and the conversion of its rows."""

    table: Table
    encode: Callable[[Record], Values]
    decode: Callable[[Values], Record]


def _encode_event(row: EventRow) -> Values:
    return (row.seq, _real(row.at_s), row.kind, _JSON.encode(row.fields))


def _decode_event(values: Values) -> EventRow:
    *facts, fields = values
    return EventRow._make((*facts, json.loads(fields)))


def _encode_update(row: UpdateRow) -> Values:
    seq, at_s, *facts, loss, local_rate, handle, location, norm, norm_buffers, norm_extra = row
    place_values: Values = (None, None, None, None)
    if location is not None:
        segment, offset, size_bytes, checksum = location
        place_values = (offset, size_bytes, signed(checksum), segment)
    norms = (_optional(norm), _optional(norm_buffers), _optional(norm_extra))
    state = (None, None, None, None)  # in no round yet
    return (seq, at_s + 0.0, *facts, _any(loss), local_rate + 0.0, *norms, handle, *place_values, *state)


def _decode_update(values: Values) -> UpdateRow:
    """Without a place where the segment is deleted."""
    *facts, norm, norm_buffers, norm_extra, handle, offset, size_bytes, checksum, segment, _, _, _, _ = values
    location = None
    if segment is not None:
        location = Location(segment=segment, offset=offset, size_bytes=size_bytes, checksum=checksum % 2**64)
    return UpdateRow._make((*facts, handle, location, norm, norm_buffers, norm_extra))


def from_format_3(values: Values) -> Values:
    """Values of UPDATES from those of UPDATES_3, which has no norms."""
    return (*values[:11], None, None, None, *values[11:])


def _encode_round(row: RoundRow) -> Values:
    version, *times, learning_rate, rate_factor, overflowed, digest, _, compensation = row
    return (
        version,
        *map(_real, (*times, learning_rate)),
        _any(rate_factor),
        int(overflowed),
        digest,
        None if compensation is None else _encode_compensation(compensation),
    )


def _decode_round(values: Values) -> RoundRow:
    """Without members."""
    *facts, rate_factor, overflowed, digest, compensation = values
    decoded = None if compensation is None else _decode_compensation(compensation)
    return RoundRow._make((*facts, _float(rate_factor), bool(overflowed), digest, (), decoded))


def _encode_compensation(row: CompensationRow) -> str:
    facts = {
        "updates": [asdict(update) for update in row.updates],
        "errors": [asdict(error) for error in row.errors],
        "fallbacks": row.fallbacks,
        "is_kept": row.is_kept,
    }
    return _JSON.encode(facts)


def _decode_compensation(text: str) -> CompensationRow:
    facts = json.loads(text)
    return CompensationRow(
        updates=tuple(Compensated(**update) for update in facts["updates"]),
        errors=tuple(MeasuredError(**error) for error in facts["errors"]),
        fallbacks=facts["fallbacks"],
        is_kept=facts["is_kept"],
    )


def _encode_evaluation(row: EvaluationRow) -> Values:
    classes = json.dumps(row.class_accuracy)
    return (row.version, _real(row.at_s), _any(row.accuracy), _any(row.loss), classes, _real(row.evaluate_s))


def _decode_evaluation(values: Values) -> EvaluationRow:
    version, at_s, accuracy, loss, classes, evaluate_s = values
    return EvaluationRow(version, at_s, _float(accuracy), _float(loss), tuple(json.loads(classes)), evaluate_s)


def _encode_own_evaluation(row: OwnEvaluationRow) -> Values:
    *facts, accuracy, loss, examples = row
    return (*facts, accuracy + 0.0, _any(loss), examples)


def _encode_task(row: TaskRow) -> Values:
    task_id, client_id, number, version, at_s = row
    return (task_id, client_id, number, version, at_s + 0.0)


def _encode_checkpoint(row: CheckpointRow) -> Values:
    return (*row[:-1], _real(row.at_s))


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


_ARRIVAL = UpdateRow._fields[:11]
_PLACE = ("handle", "offset", "size_bytes", "checksum")
_KEYS = ("seq", "handle")
_STATE = ("segment", "round", "position", "staleness", "weight")

EVENTS = Codec(Table("events", EventRow._fields), _encode_event, _decode_event)
TASKS = Codec(Table("tasks", TaskRow._fields), _encode_task, TaskRow._make)
UPDATES = Codec(
    Table("updates", (*_ARRIVAL, *UpdateRow._fields[-3:], *_PLACE), state=_STATE, keys=_KEYS),
    _encode_update,
    _decode_update,
)
UPDATES_3 = Codec(
    Table("updates", (*_ARRIVAL, *_PLACE), state=_STATE, keys=_KEYS, state_checksum=None),
    _encode_update,
    lambda values: _decode_update(from_format_3(values)),
)
"""Here and below: as in format 3, which is only read."""
ROUNDS = Codec(Table("rounds", [name for name in RoundRow._fields if name != "members"]), _encode_round, _decode_round)
EVALUATIONS = Codec(Table("evaluations", EvaluationRow._fields), _encode_evaluation, _decode_evaluation)
OWN_EVALUATIONS = Codec(
    Table("own_evaluations", OwnEvaluationRow._fields), _encode_own_evaluation, OwnEvaluationRow._make
)
CHECKPOINTS = Codec(Table("checkpoints", CheckpointRow._fields), _encode_checkpoint, CheckpointRow._make)

STATES = Table("updates", (*_KEYS, *_STATE), checksum="state_checksum")
"""The columns of updates that change."""
STATES_3 = Table("updates", (*_KEYS, *_STATE), checksum=None)


def pending_state(row: UpdateRow) -> Values:
    """The row of STATES of an accepted update that is in no round."""
    return (row.seq, row.handle, row.location and row.location.segment, None, None, None, None)


def in_round(state: Values, version: int, position: int, member: MemberRow) -> Values:
    """A row of STATES as that of a member of a round."""
    return (*state[:3], version, position, member.staleness, _any(member.weight))


def without_round(state: Values) -> Values:
    """A row of STATES as that of a pending update."""
    return (*state[:3], None, None, None, None)


def without_segment(state: Values) -> Values:
    """A row of STATES whose segment is deleted."""
    seq, handle, _, *facts = state
    return (seq, handle, None, *facts)


def member(state: Values) -> MemberRow:
    """The member of a round from a row of STATES."""
    _, handle, _, _, _, staleness, weight = state
    return MemberRow(handle=handle, staleness=staleness, weight=_float(weight))
