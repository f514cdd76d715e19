"""Converts records to rows of SQLite's tables and back. Pure.

A row has a checksum of its values as SQLite returns them: without NaN, which becomes null, and in REAL columns without
integers and negative zero.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

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
from unstale.journal.schema import ADDED_COLUMNS, FORMAT, METRICS_FORMAT
from unstale.journal.tables import Table, Values, signed
from unstale.learner.row_checks import Norms
from unstale.learner.updates import StagedUpdate

Record = TypeVar("Record")

_JSON = json.JSONEncoder(separators=(",", ":"))  # `json.dumps` creates a new one each time


@dataclass(frozen=True, slots=True)
class Codec(Generic[Record]):
    """A table and the conversion of its rows."""

    table: Table
    encode: Callable[[Record], Values]
    decode: Callable[[Values], Record]


# --- records whose fields are columns ---


class _Kind(NamedTuple):
    """Conversion of the values of a column."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _real(value: float) -> float:
    """For a REAL column."""
    return float(value) + 0.0


def _any(value: float | None) -> float | None:
    """For a column of type ANY."""
    return None if value is None or math.isnan(value) else float(value)


def _float(value: float | None) -> float:
    """From a column of type ANY."""
    return math.nan if value is None else value


def _encode_compensation(row: CompensationRow | None) -> str | None:
    if row is None:
        return None
    facts = {
        "updates": [asdict(update) for update in row.updates],
        "errors": [asdict(error) for error in row.errors],
        "fallbacks": row.fallbacks,
        "is_kept": row.is_kept,
    }
    return _JSON.encode(facts)


def _decode_compensation(text: str | None) -> CompensationRow | None:
    if text is None:
        return None
    facts = json.loads(text)
    return CompensationRow(
        updates=tuple(Compensated(**update) for update in facts["updates"]),
        errors=tuple(MeasuredError(**error) for error in facts["errors"]),
        fallbacks=facts["fallbacks"],
        is_kept=facts["is_kept"],
    )


def _encode_metrics(metrics: Mapping[str, float]) -> str:
    """JSON, which SQLite reads too: null for what is not a number, 9e999 for infinity."""
    return f"{{{','.join(f'{_JSON.encode(name)}:{_number(value)}' for name, value in metrics.items())}}}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "null"
    return repr(float(value)).replace("inf", "9e999")


def _decode_metrics(text: str | None) -> Mapping[str, float]:
    if text is None:
        return {}
    return {name: math.nan if value is None else float(value) for name, value in json.loads(text).items()}


def _encode_any_metrics(metrics: Mapping[str, float]) -> str | None:
    return _encode_metrics(metrics) if metrics else None


_PLAIN = _Kind(_same, _same)
_METRICS = _Kind(_encode_metrics, _decode_metrics)
_ANY_METRICS = _Kind(_encode_any_metrics, _decode_metrics)
_REAL = _Kind(_real, _same)
_ANY = _Kind(_any, _float)


def _codec(name: str, record: Callable[..., Record], columns: Sequence[str], **kinds: _Kind) -> Codec[Record]:
    """The codec of a table. columns: the first fields of a record. kinds: of the columns that are not `_PLAIN`."""
    encoders, decoders = zip(*(kinds.get(column, _PLAIN) for column in columns), strict=True)

    def encode(row: Any) -> Values:
        return tuple([encoder(value) for encoder, value in zip(encoders, row, strict=False)])

    def decode(values: Values) -> Record:
        return record(*[decoder(value) for decoder, value in zip(decoders, values, strict=True)])

    return Codec(Table(name, columns), encode, decode)


_CLASS_ACCURACY = _Kind(json.dumps, lambda text: tuple(json.loads(text)))

EVENTS = _codec("events", EventRow, EventRow._fields, at_s=_REAL, fields=_Kind(_JSON.encode, json.loads))
TASKS = _codec("tasks", TaskRow, TaskRow._fields, at_s=_REAL)
ROUNDS = _codec(
    "rounds",
    RoundRow,
    RoundRow._fields[:-1],  # members are in the table updates
    **dict.fromkeys(("closed_s", "applied_s", "wait_s", "compensate_s", "aggregate_s", "learning_rate"), _REAL),
    rate_factor=_ANY,
    overflowed=_Kind(int, bool),
    compensation=_Kind(_encode_compensation, _decode_compensation),
    metrics=_ANY_METRICS,
)
EVALUATIONS = _codec(
    "evaluations",
    EvaluationRow,
    EvaluationRow._fields,
    at_s=_REAL,
    metrics=_METRICS,
    class_accuracy=_CLASS_ACCURACY,
    evaluate_s=_REAL,
)
OWN_EVALUATIONS = _codec("own_evaluations", OwnEvaluationRow, OwnEvaluationRow._fields, metrics=_METRICS)
CHECKPOINTS = _codec("checkpoints", CheckpointRow, CheckpointRow._fields, at_s=_REAL)


# --- updates ---


class State(NamedTuple):
    """The columns of an accepted update that change: in which segment and round it is."""

    seq: int
    handle: int
    segment: int | None = None
    round: int | None = None
    position: int | None = None
    staleness: int | None = None
    weight: float | None = None

    def in_round(self, version: int, position: int, member: MemberRow) -> "State":
        """As that of a member of a round."""
        return State(*self[:3], version, position, member.staleness, _any(member.weight))

    @property
    def without_round(self) -> "State":
        """As that of a pending update."""
        return State(*self[:3])

    @property
    def member(self) -> MemberRow:
        """The member of a round."""
        assert self.staleness is not None
        return MemberRow(handle=self.handle, staleness=self.staleness, weight=_float(self.weight))


_KEYS, _STATE = State._fields[:2], State._fields[2:]
_STAGED = [field.name for field in fields(StagedUpdate) if field.name != "metrics"]
_FLOATS = {field.name for field in fields(StagedUpdate) if field.type is not int}
_NORMS = ("norm", "norm_buffers", "norm_extra")
_FACTS = (
    *("seq", "at_s", *_STAGED[:3], "outcome", "reason", *_STAGED[3:], *_NORMS, "metrics"),
    *("handle", "offset", "size_bytes", "checksum"),
)
_STAGED_END = 7 + len(_STAGED[3:])
_staged_values = attrgetter(*_STAGED)


def _encode_update(row: UpdateRow) -> Values:
    values = zip(_STAGED, _staged_values(row.staged), strict=True)
    staged = [_any(value) if name in _FLOATS else value for name, value in values]
    norms = (None, None, None) if row.norms is None else map(_any, row.norms)
    location: Values = (None, None, None, None)
    if row.location is not None:
        segment, offset, size_bytes, checksum = row.location
        location = (offset, size_bytes, signed(checksum), segment)
    in_no_round = (None, None, None, None)
    facts = (row.seq, _real(row.at_s), *staged[:3], row.outcome, row.reason, *staged[3:], *norms)
    metrics = _encode_any_metrics(row.staged.metrics)
    return (*facts, metrics, row.handle, *location, *in_no_round)


def _decode_update(values: Values) -> UpdateRow:
    """Without a place where the segment is deleted."""
    staged = dict(zip(_STAGED, (*values[2:5], *values[7:_STAGED_END]), strict=True))
    seq, at_s, outcome, reason = *values[:2], *values[5:7]
    norm, norm_buffers, norm_extra, metrics, handle, offset, size_bytes, checksum, segment, *_ = values[_STAGED_END:]
    return UpdateRow(
        seq,
        at_s,
        StagedUpdate(**staged, metrics=_decode_metrics(metrics)),
        outcome,
        reason,
        None if norm is None else Norms(norm, norm_buffers, norm_extra),
        handle,
        None if segment is None else Location(segment, offset, size_bytes, checksum % 2**64),
    )


@cache
def updates(version: int) -> Codec[UpdateRow]:
    """The codec of updates in a format of the database, only for reading unless it is the newest."""
    absent = _absent(version)
    table = Table(
        "updates",
        [name for name in _FACTS if name not in absent],
        state=_STATE,
        keys=_KEYS,
        state_checksum=None if "state_checksum" in absent else "state_checksum",
    )
    decode = (lambda values: _decode_update(newest(values, version))) if absent else _decode_update
    return Codec(table, _encode_update, decode)


@cache
def states(version: int) -> Table:
    """The columns of updates that change, in a format of the database."""
    checksum = None if "state_checksum" in _absent(version) else "state_checksum"
    return Table("updates", State._fields, checksum=checksum)


def newest(values: Values, version: int) -> Values:
    """Values of updates in a format of the database as those of the newest one: null in columns that it adds."""
    absent, present = _absent(version), iter(values)
    return (*[None if name in absent else next(present) for name in _FACTS], *present)


@cache
def _absent(version: int) -> frozenset[str]:
    return frozenset(name for added_in, names in ADDED_COLUMNS.items() if added_in > version for name in names)


UPDATES, STATES = updates(FORMAT), states(FORMAT)

CODECS: tuple[Codec[Any], ...] = (EVENTS, TASKS, UPDATES, ROUNDS, EVALUATIONS, OWN_EVALUATIONS, CHECKPOINTS)
"""Of all tables but `meta`; the tables have the names of the fields of `Batch`."""


# --- former formats ---


def _former_evaluation(version: int, at_s: float, accuracy: float, loss: float, *others: Any) -> EvaluationRow:
    return EvaluationRow(version, at_s, {"accuracy": accuracy, "loss": loss}, *others)


def _former_own_evaluation(*values: Any) -> OwnEvaluationRow:
    seq, client_id, version, accuracy, loss, examples = values
    return OwnEvaluationRow(seq, client_id, version, {"accuracy": accuracy, "loss": loss}, examples)


_BEFORE_METRICS: dict[Codec[Any], Codec[Any]] = {
    ROUNDS: _codec(
        "rounds",
        RoundRow,
        RoundRow._fields[:-2],
        rate_factor=_ANY,
        overflowed=_Kind(int, bool),
        compensation=_Kind(_encode_compensation, _decode_compensation),
    ),
    EVALUATIONS: _codec(
        "evaluations",
        _former_evaluation,
        ("version", "at_s", "accuracy", "loss", "class_accuracy", "evaluate_s"),
        accuracy=_ANY,
        loss=_ANY,
        class_accuracy=_CLASS_ACCURACY,
    ),
    OWN_EVALUATIONS: _codec(
        "own_evaluations",
        _former_own_evaluation,
        ("seq", "client_id", "version", "accuracy", "loss", "examples"),
        loss=_ANY,
    ),
}


@cache
def in_format(codec: Codec[Record], version: int) -> Codec[Record]:
    """The codec of a table in a format of the database, only for reading unless it is the newest."""
    if codec is UPDATES:
        return updates(version)  # type: ignore[return-value]
    return codec if version >= METRICS_FORMAT else _BEFORE_METRICS.get(codec, codec)
