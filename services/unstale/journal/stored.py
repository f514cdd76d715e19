"""Records as rows of SQLite's tables, and back. Pure.

What a crash must not change without a sign carries a checksum: SQLite has none of its own. Rounds do without, because
their digest is compared when they are computed again.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_64_intdigest

from unstale.journal.rows import (
    CheckpointRow,
    EvaluationRow,
    EventRow,
    MemberRow,
    Place,
    RoundRow,
    TaskRow,
    UpdateRow,
)

Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and columns of it in the order that the values have here."""

    name: str
    columns: str

    @property
    def select(self) -> str:
        return " ".join(("SELECT", self.columns, "FROM", self.name))

    def insert(self, *, replace: bool) -> str:
        """replace: a row with the same key gives way."""
        insert = "INSERT OR REPLACE INTO" if replace else "INSERT INTO"
        places = ", ".join("?" * (self.columns.count(",") + 1))
        return f"{insert} {self.name} ({self.columns}) VALUES ({places})"


META = Table("meta", "key, value")
EVENTS = Table("events", "seq, at_s, kind, fields, row_checksum")
TASKS = Table("tasks", "task_id, client_id, number, version, at_s")
UPDATES = Table(
    "updates",
    "seq, at_s, client_id, task_id, base_version, outcome, reason, num_examples, batch_examples, loss, local_rate, "
    "handle, checksum, row_checksum, segment, offset, size_bytes",
)
ROUNDS = Table(
    "rounds",
    "version, closed_s, applied_s, wait_s, aggregate_s, learning_rate, rate_factor, overflowed, digest",
)
MEMBERS = Table("updates", "handle, staleness, weight")
EVALUATIONS = Table("evaluations", "version, at_s, accuracy, loss, class_accuracy, evaluate_s")
CHECKPOINTS = Table("checkpoints", "version, seq, file, size_bytes, at_s")


class ChangedRowError(Exception):
    """A row is not what was stored."""


def of_event(row: EventRow) -> Values:
    """The values of EVENTS."""
    facts = (row.seq, row.at_s, row.kind, json.dumps(dict(row.fields), separators=(",", ":")))
    return (*facts, _checksum(facts))


def event(values: Values) -> EventRow:
    """From EVENTS. Raises ChangedRowError."""
    *facts, row_checksum = values
    seq, at_s, kind, fields = facts
    _check(f"event {seq}", facts, row_checksum)
    return EventRow(seq=seq, at_s=at_s, kind=kind, fields=json.loads(fields))


def of_task(row: TaskRow) -> Values:
    """The values of TASKS."""
    return (row.task_id, row.client_id, row.number, row.version, row.at_s)


def task(values: Values) -> TaskRow:
    """From TASKS."""
    task_id, client_id, number, version, at_s = values
    return TaskRow(task_id=task_id, client_id=client_id, number=number, version=version, at_s=at_s)


def of_update(row: UpdateRow) -> Values:
    """The values of UPDATES."""
    place = row.place
    facts = (
        row.seq,
        row.at_s,
        row.client_id,
        row.task_id,
        row.base_version,
        row.outcome,
        row.reason,
        row.num_examples,
        row.batch_examples,
        row.loss,
        row.local_rate,
        row.handle,
        None if place is None else _signed(place.checksum),
    )
    where = (None, None, None) if place is None else (place.segment, place.offset, place.size_bytes)
    return (*facts, _checksum(facts), *where)


def update(values: Values) -> UpdateRow:
    """From UPDATES. Raises ChangedRowError."""
    *facts, row_checksum, segment, offset, size_bytes = values
    _check(f"the update of event {facts[0]}", facts, row_checksum)
    seq, at_s, client_id, task_id, base_version, outcome, reason, *others = facts
    num_examples, batch_examples, loss, local_rate, handle, checksum = others
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
    """The values of ROUNDS."""
    times = (row.closed_s, row.applied_s, row.wait_s, row.aggregate_s)
    return (row.version, *times, row.learning_rate, row.rate_factor, row.overflowed, row.digest)


def round_(values: Values, members: tuple[MemberRow, ...]) -> RoundRow:
    """From ROUNDS."""
    version, closed_s, applied_s, wait_s, aggregate_s, learning_rate, rate_factor, overflowed, digest = values
    return RoundRow(
        version=version,
        closed_s=closed_s,
        applied_s=applied_s,
        wait_s=wait_s,
        aggregate_s=aggregate_s,
        learning_rate=learning_rate,
        rate_factor=_float(rate_factor),
        overflowed=bool(overflowed),
        digest=digest,
        members=members,
    )


def of_members(row: RoundRow) -> list[Values]:
    """For each update of a round: version, position, staleness, weight, handle."""
    return [
        (row.version, position, member.staleness, member.weight, member.handle)
        for position, member in enumerate(row.members)
    ]


def member(values: Values) -> MemberRow:
    """From MEMBERS."""
    handle, staleness, weight = values
    return MemberRow(handle=handle, staleness=staleness, weight=_float(weight))


def of_evaluation(row: EvaluationRow) -> Values:
    """The values of EVALUATIONS."""
    classes = json.dumps(row.class_accuracy)
    return (row.version, row.at_s, row.accuracy, row.loss, classes, row.evaluate_s)


def evaluation(values: Values) -> EvaluationRow:
    """From EVALUATIONS."""
    version, at_s, accuracy, loss, class_accuracy, evaluate_s = values
    return EvaluationRow(
        version=version,
        at_s=at_s,
        accuracy=_float(accuracy),
        loss=_float(loss),
        class_accuracy=tuple(json.loads(class_accuracy)),
        evaluate_s=evaluate_s,
    )


def of_checkpoint(row: CheckpointRow) -> Values:
    """The values of CHECKPOINTS."""
    return (row.version, row.seq, row.file, row.size_bytes, row.at_s)


def checkpoint(values: Values) -> CheckpointRow:
    """From CHECKPOINTS."""
    version, seq, file, size_bytes, at_s = values
    return CheckpointRow(version=version, seq=seq, file=file, size_bytes=size_bytes, at_s=at_s)


def _check(what: str, facts: Sequence[Any], row_checksum: int) -> None:
    if _checksum(facts) != row_checksum:
        raise ChangedRowError(f"{what} is not what was stored")


def _checksum(facts: Sequence[Any]) -> int:
    return _signed(xxh3_64_intdigest(json.dumps(facts).encode()))


def _signed(checksum: int) -> int:
    """As SQLite's integers are."""
    return checksum - 2**64 if checksum >= 2**63 else checksum


def _float(value: float | None) -> float:
    """SQLite keeps what is not a number as null."""
    return math.nan if value is None else value
