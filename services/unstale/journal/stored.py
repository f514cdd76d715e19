"""Records as rows of SQLite's tables, and back. Pure.

Every row carries a checksum, because SQLite has none of its own. It is taken of the values as SQLite gives them
back: no NaN, which it keeps as null, and in columns of type REAL no integers and no negative zero.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgpack
from xxhash import xxh3_64_intdigest

from unstale.compensators import Compensated, MeasuredError
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

Values = tuple[Any, ...]

_PACK = msgpack.Packer().pack  # keeps its memory: `packb` has 256 KB mapped and given back each time
_JSON = json.JSONEncoder(separators=(",", ":"))  # `json.dumps` makes a new one each time


class ChangedRowError(Exception):
    """A row is not what was stored."""


class Table:
    """A table and its columns, in the order that values have here. select: SQL for whole rows."""

    def __init__(self, name: str, facts: Sequence[str], others: Sequence[str] = ()) -> None:
        """facts: under the checksum; the first is the key. others: what changes later."""
        self._name, self._facts = name, facts
        columns = [*facts, *others, "row_checksum"]
        names, places = ", ".join(columns), ", ".join("?" * len(columns))
        self.select = " ".join(("SELECT", names, "FROM", name))
        self._into, self._row = " ".join(("INTO", name, f"({names}) VALUES")), f"({places})"

    def insert(self, rows: int, *, replace: bool = False) -> str:
        """SQL for so many rows. One statement for all: each gives the interpreter away, and waits to have it back."""
        return f"INSERT {'OR REPLACE ' if replace else ''}{self._into} {', '.join([self._row] * rows)}"

    def sealed(self, values: Values) -> Values:
        """With their checksum, as they are inserted."""
        return (*values, _checksum(values[: len(self._facts)]))

    def opened(self, values: Values) -> Values:
        """Without it, as they were selected. Raises ChangedRowError."""
        *values_then, row_checksum = values
        if _checksum(values_then[: len(self._facts)]) != row_checksum:
            raise ChangedRowError(f"{self._name} {self._facts[0]} {values[0]} is not what was stored")
        return tuple(values_then)


META = Table("meta", ("key", "value"))
EVENTS = Table("events", ("seq", "at_s", "kind", "fields"))
TASKS = Table("tasks", ("task_id", "client_id", "number", "version", "at_s"))
_UPDATE = (
    *(
        "seq",
        "at_s",
        "client_id",
        "task_id",
        "base_version",
        "outcome",
        "reason",
        "num_examples",
        "batch_examples",
    ),
    *("loss", "local_rate", "handle", "offset", "size_bytes", "checksum"),
)
UPDATES = Table("updates", _UPDATE, ("segment",))
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

MEMBERS = (
    "SELECT handle, staleness, weight FROM updates WHERE handle IS NOT NULL AND round = ? ORDER BY position"
)
"""Without a checksum: what staleness does to a round stands in its digest."""


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
    seq, at_s, *others, loss, local_rate, handle, place = row
    lies: Values = (None, None, None, None)
    if place is not None:
        segment, offset, size_bytes, checksum = place
        lies = (offset, size_bytes, _signed(checksum), segment)
    return (seq, at_s + 0.0, *others, _any(loss), local_rate + 0.0, handle, *lies)


def update(values: Values) -> UpdateRow:
    """With no place where its segment is deleted."""
    seq, at_s, client_id, task_id, base_version, outcome, reason, *others = values
    num_examples, batch_examples, loss, local_rate, handle, offset, size_bytes, checksum, segment = others
    place = None
    if segment is not None:
        place = Place(segment=segment, offset=offset, size_bytes=size_bytes, checksum=checksum % 2**64)
    return UpdateRow(
        seq=seq,
        at_s=at_s,
        client_id=client_id,
        task_id=task_id,
        base_version=base_version,
        outcome=outcome,
        reason=reason,
        num_examples=num_examples,
        batch_examples=batch_examples,
        loss=loss,
        local_rate=local_rate,
        handle=handle,
        place=place,
    )


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


def round_(values: Values, members: tuple[MemberRow, ...]) -> RoundRow:
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
        members=members,
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


def of_members(row: RoundRow) -> list[Values]:
    """For each update of a round: version, position, staleness, weight, handle."""
    return [
        (row.version, position, member.staleness, _any(member.weight), member.handle)
        for position, member in enumerate(row.members)
    ]


def member(values: Values) -> MemberRow:
    """From MEMBERS."""
    handle, staleness, weight = values
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


def _checksum(facts: Sequence[Any]) -> int:
    return _signed(xxh3_64_intdigest(_PACK(facts)))


def _signed(checksum: int) -> int:
    """As SQLite's integers are."""
    return checksum - 2**64 if checksum >= 2**63 else checksum


def _real(value: float) -> float:
    """For a REAL column."""
    return float(value) + 0.0


def _any(value: float) -> float | None:
    """For a column of type ANY."""
    return None if math.isnan(value) else float(value)


def _float(value: float | None) -> float:
    """From a column of type ANY."""
    return math.nan if value is None else value
