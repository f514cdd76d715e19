"""Records as rows of SQLite's tables, and back. Pure.

Every row carries a checksum, because SQLite has none of its own. It is taken of the values as SQLite gives them
back: no NaN, which it keeps as null, and in columns of type REAL no integers and no negative zero.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from operator import itemgetter
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


def _nothing(_: Values) -> Values:
    return ()


class Table:
    """A table and its columns, in the order that values have here.

    Attributes:
        select: SQL for whole rows.
        total: SQL for the number of rows, and the sum of their checksums without the upper 32 bits.
    """

    def __init__(
        self,
        name: str,
        facts: Sequence[str],
        *,
        state: Sequence[str] = (),
        keys: Sequence[str] = (),
        checksum: str | None = "row_checksum",
        state_checksum: str | None = "state_checksum",
    ) -> None:
        """Describe a table.

        Args:
            name: Of the table.
            facts: Columns under `checksum`; the first is the key. They never change.
            state: Columns that change, under `state_checksum` together with the columns `keys` of the facts.
            keys: See there.
            checksum: Column; None for facts that no checksum covers.
            state_checksum: Column; None for state that no checksum covers.
        """
        self._name, self._facts, self._state = name, facts, state
        self._end = len(facts)
        self._keys: Callable[[Values], Values] = itemgetter(*map(facts.index, keys)) if keys else _nothing
        self._has_checksum = checksum is not None
        self._has_state_checksum = bool(state) and state_checksum is not None
        checksums = [checksum] if checksum else []
        state_checksums = [state_checksum] if state_checksum and state else []
        columns = [*facts, *checksums, *state, *state_checksums]
        names, places = ", ".join(columns), ", ".join("?" * len(columns))
        self.select = " ".join(("SELECT", names, "FROM", name))
        sums = [f"ifnull(sum({column} & 4294967295), 0)" for column in (*checksums, *state_checksums)]
        self.total = " ".join(("SELECT", ", ".join(["count(*)", " + ".join(sums) or "0"]), "FROM", name))
        self._into, self._row = " ".join(("INTO", name, f"({names}) VALUES")), f"({places})"
        self._numbers = {column: number for number, column in enumerate(columns)}

    def insert(self, rows: int, *, replace: bool = False) -> str:
        """SQL for so many rows. One statement for all: each gives the interpreter away, and waits to have it back."""
        return f"INSERT {'OR REPLACE ' if replace else ''}{self._into} {', '.join([self._row] * rows)}"

    def update(self, columns: Sequence[str], rows: int) -> str:
        """SQL that changes these columns, and the last one, of so many rows. Its values are those of `changed`."""
        names = [self._facts[0], *columns, list(self._numbers)[-1]]
        sets = ", ".join(f"{name} = new.column{number}" for number, name in enumerate(names[1:], start=2))
        row = f"({', '.join('?' * len(names))})"
        of_which = f"FROM (VALUES {', '.join([row] * rows)}) AS new WHERE {names[0]} = new.column1"
        return " ".join(("UPDATE", self._name, "SET", sets, of_which))

    def changed(self, columns: Sequence[str]) -> Callable[[Values], Values]:
        """What `update` takes of a row that is `sealed`."""
        return itemgetter(0, *(self._numbers[name] for name in columns), len(self._numbers) - 1)

    def sealed(self, values: Values) -> Values:
        """With their checksums, as they are inserted."""
        if not self._state:
            return (*values, _checksum(values))
        facts, state = values[: self._end], values[self._end :]
        return (*facts, _checksum(facts), *state, _checksum((*self._keys(facts), *state)))

    def opened(self, values: Values) -> Values:
        """Without them, as they were selected. Raises ChangedRowError."""
        end = self._end
        facts = values[:end]
        if self._has_checksum:
            if _checksum(facts) != values[end]:
                raise self._changed(facts)
            end += 1
        if not self._state:
            return facts
        state = values[end : end + len(self._state)]
        if self._has_state_checksum and _checksum((*self._keys(facts), *state)) != values[-1]:
            raise self._changed(facts)
        return (*facts, *state)

    def _changed(self, facts: Values) -> ChangedRowError:
        return ChangedRowError(f"{self.row(facts)} is not what was stored")

    def row(self, values: Values) -> str:
        """What a row is called: the table, the key column and its value."""
        return f"{self._name} {self._facts[0]} {values[0]}"


META = Table("meta", ("key", "value"))
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
        lies = (offset, size_bytes, _signed(checksum), segment)
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


def _optional(value: float | None) -> float | None:
    """For a column of type ANY."""
    return None if value is None else _any(value)


def _float(value: float | None) -> float:
    """From a column of type ANY."""
    return math.nan if value is None else value
