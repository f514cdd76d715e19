"""`run.db`: everything that happened in a run but the bytes of updates, in SQLite."""

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from unstale.journal import audit as audits
from unstale.journal import formats, records, row_codec
from unstale.journal.audit import UNREADABLE, Audit
from unstale.journal.disk import DamagedError, boot
from unstale.journal.rows import (
    Batch,
    CheckpointRow,
    EvaluationRow,
    EventRow,
    OwnEvaluationRow,
    RoundRow,
    TaskRow,
    UpdateRow,
)
from unstale.journal.schema import FORMAT
from unstale.journal.sequence_file import SequenceFile
from unstale.journal.sqlite import Connection, reported
from unstale.journal.tables import Table, Values

# Of 4 KiB, after which SQLite moves them into the database. That syncs twice: with its own default of 1,000 it took as
# long as all else that is done to store a turn.
WAL_PAGES = 8192
WAL_BYTES_MAX = 64 * 1024**2  # what a long read may have let it grow to is given back

_OF_ROUND = "WHERE handle IS NOT NULL AND round = ? ORDER BY position"
_ROUND_COLUMNS = ("round", "position", "staleness", "weight")
_LAST_SEQ = (
    "SELECT max(seq) FROM (SELECT max(seq) AS seq FROM events UNION ALL SELECT max(seq) FROM updates "
    "UNION ALL SELECT max(seq) FROM checkpoints)"
)
_FIRST_S = "SELECT min(at_s) FROM (SELECT seq, at_s FROM events UNION ALL SELECT seq, at_s FROM updates) WHERE seq >= ?"
_SEGMENTS = "SELECT DISTINCT segment FROM updates WHERE segment IS NOT NULL"
_BEHIND = f"{_SEGMENTS} AND (round IS NULL OR round > ?)"


Record = TypeVar("Record")

BOOT = "boot"  # of the machine on which the database was last written to
MARKS = "marks"  # of the files of the directory, before and after the last server started
TOTALS = "totals"  # of the tables, as the last server left them, behind its marks
SYNCED = "synced"  # seq up to which all was known to be on the disk itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Conservation:
    """What became of the updates that had a verdict: received = aggregated + pending + rejected."""

    received: int
    aggregated: int
    pending: int
    rejected: int


class Database:
    """The database of a run. One thread at a time.

    log: the file that what is stored goes to first; once it is synced, all that was stored is durable.
    machine_restarted: since it was last written to, or possibly. Then what was not synced may be gone. missing: events
    that were stored and are not there, as far as that is known.

    Raises UserError, one sentence that names the file, for all that the disk and SQLite can do; DamagedError when what
    was stored is not there any more.
    """

    def __init__(self, path: Path, *, read_only: bool = False, takes_loss: bool = False) -> None:
        """Open it, or make it when there is none and not `read_only`. Looks through all of it for damage. takes_loss:
        events at its end may be missing."""
        self.path = path
        self.log = path.with_name(f"{path.name}-wal")
        self._waiting: dict[int, Values] = {}  # rows of STATES, by handle; one that is missing here is read
        with ExitStack() as stack, reported(path, "open"):
            self._connection = Connection(path, read_only=read_only)
            stack.callback(self._connection.close)
            self._format = self._prepared(read_only)
            self._sequence_file = SequenceFile(path.with_name(f"{path.name}-newest"), read_only=read_only)
            stack.callback(self._sequence_file.close)
            before = self.meta(BOOT)
            self.machine_restarted = before is not None and (before == "" or before != boot())
            self.missing = self._missing_at_end(takes_loss=takes_loss or self.machine_restarted)
            if self._format != FORMAT and not read_only:
                formats.convert(self._connection)
                self._format = FORMAT
            stack.pop_all()

    def close(self) -> None:
        """Nothing more will be asked."""
        self._sequence_file.close()
        self._connection.close()

    # --- writing ---

    def store(self, batch: Batch, *, sync: bool) -> None:
        """Store all of it or, when that raises, nothing. sync: return when it and all before it is durable.

        An empty batch stores nothing, and syncs nothing.
        """
        if not batch:
            return
        with self._storing(sync):
            self._connection.insert(row_codec.EVENTS, map(row_codec.of_event, batch.events))
            self._connection.insert(row_codec.TASKS, map(row_codec.of_task, batch.tasks))
            self._connection.insert(row_codec.UPDATES, map(row_codec.of_update, batch.updates))
            self._waiting.update(
                (row.handle, row_codec.waiting(row)) for row in batch.updates if row.handle is not None
            )
            self._connection.insert(
                row_codec.OWN_EVALUATIONS, map(row_codec.of_own_evaluation, batch.own_evaluations)
            )
            self._connection.insert(row_codec.ROUNDS, map(row_codec.of_round, batch.rounds))
            for row in batch.rounds:
                self._join(row)
            # A run that is taken up measures, and saves, a version again: what comes last stays.
            self._connection.insert(
                row_codec.EVALUATIONS, map(row_codec.of_evaluation, batch.evaluations), replace=True
            )
            self._connection.insert(
                row_codec.CHECKPOINTS, map(row_codec.of_checkpoint, batch.checkpoints), replace=True
            )
            if batch.synced is not None:
                self._connection.insert(row_codec.META, [(SYNCED, str(batch.synced))], replace=True)
        last_seq = batch.last_seq
        if last_seq is not None:
            self._sequence_file.set(last_seq)

    def set_meta(self, values: Mapping[str, str]) -> None:
        """Facts about the run as a whole, each under a key; durable at once, as all that follows is."""
        with self._connection.transaction(sync=True):
            self._connection.insert(row_codec.META, values.items(), replace=True)

    @property
    def newest_is_missing(self) -> bool:
        """Whether the file with the number of the newest event was missing when this was opened."""
        return self._sequence_file.is_missing

    def end_here(self) -> None:
        """The last event that is there is the newest."""
        self._sequence_file.set(self.last_seq())

    def cut_back(self, seq: int) -> None:
        """Forget that this event, and any behind it, ever happened. None of them is covered by a checkpoint."""
        self._waiting.clear()
        with self._connection.transaction(sync=True):
            run = self._connection.execute
            ((at_s,),) = run(_FIRST_S, (seq,)).fetchall()
            ((version,),) = run(
                "SELECT min(json_extract(fields, '$.version')) FROM events WHERE seq >= ? AND kind = 'RoundApplied'",
                (seq,),
            ).fetchall()
            if version is not None:
                states = list(self._connection.select(self._states, "WHERE round >= ?", version))
                self._connection.update(row_codec.STATES, map(row_codec.pending, states), _ROUND_COLUMNS)
                run("DELETE FROM evaluations WHERE version >= ?", (version,))
                run("DELETE FROM rounds WHERE version >= ?", (version,))
            run("DELETE FROM tasks WHERE at_s >= ?", (at_s,))
            run("DELETE FROM own_evaluations WHERE seq >= ?", (seq,))
            run("DELETE FROM updates WHERE seq >= ?", (seq,))
            run("DELETE FROM events WHERE seq >= ?", (seq,))
        self.end_here()

    def forget_checkpoints(self, before_version: int) -> None:
        """Of older versions. Here and below: durable with what is synced next, and then their files may be deleted."""
        with self._connection.transaction(sync=False):
            self._connection.execute("DELETE FROM checkpoints WHERE version < ?", (before_version,))

    def forget_checkpoint(self, version: int) -> None:
        """Of this version, which is not whole."""
        with self._connection.transaction(sync=False):
            self._connection.execute("DELETE FROM checkpoints WHERE version = ?", (version,))

    def forget_events(self, up_to_seq: int) -> None:
        """Those that every checkpoint covers."""
        with self._connection.transaction(sync=False):
            self._connection.execute("DELETE FROM events WHERE seq <= ?", (up_to_seq,))

    def forget_segments(self, kept: Collection[int]) -> None:
        """Rows in other segments than these have no place any more."""
        with self._connection.transaction(sync=False):
            stored_in = {segment for (segment,) in self._connection.rows(_SEGMENTS)}
            for segment in stored_in - set(kept):
                states = list(self._connection.select(self._states, "WHERE segment = ?", segment))
                self._connection.update(
                    row_codec.STATES, map(row_codec.without_segment, states), ("segment",)
                )

    # --- reading ---

    def snapshot(self) -> AbstractContextManager[None]:
        """All that is read meanwhile is as it was at the first read, whatever a server stores. Nothing is written."""
        return self._connection.snapshot()

    def meta(self, key: str) -> str | None:
        """A fact about the run, None when it was never said."""
        return next(
            (value for _, value in self._connection.select(row_codec.META, "WHERE key = ?", key)), None
        )

    def started_s(self) -> float | None:
        """When the first task was given, None before."""
        ((at_s,),) = self._connection.rows("SELECT min(at_s) FROM tasks")
        return None if at_s is None else float(at_s)

    def last_seq(self) -> int:
        """Of the last event that was stored, 0 when there is none."""
        return self._connection.number(_LAST_SEQ) or 0

    def last_version(self) -> int:
        """The greatest that a round made, 0 when there is none."""
        return self._connection.number("SELECT max(version) FROM rounds") or 0

    def last_handle(self) -> int:
        """The greatest of an accepted update, -1 when there is none."""
        handle = self._connection.number("SELECT max(handle) FROM updates")
        return -1 if handle is None else handle

    def events_after(self, seq: int) -> Iterator[EventRow]:
        """Every event behind that one, in order. Raises DamagedError where one is missing or is not what it was."""
        others = self._records(row_codec.EVENTS, row_codec.event, "WHERE seq > ? ORDER BY seq", seq)
        arrivals = map(records.arrival, self.updates_after(seq))
        for row in heapq.merge(others, arrivals, key=attrgetter("seq")):
            seq += 1
            if row.seq != seq:
                raise self._connection.damaged(f"event {seq} is missing")
            yield row

    def tasks(self) -> Iterator[TaskRow]:
        """Every task, in order of their ids."""
        return self._records(row_codec.TASKS, row_codec.task, "ORDER BY task_id")

    def task(self, task_id: int) -> TaskRow | None:
        """A task, None when none has this id."""
        return next(self._records(row_codec.TASKS, row_codec.task, "WHERE task_id = ?", task_id), None)

    def updates_after(self, seq: int) -> Iterator[UpdateRow]:
        """Every update whose event is behind that one, rejected ones too, in order."""
        return self._updates("WHERE seq > ? ORDER BY seq", seq)

    def pending(self) -> Iterator[UpdateRow]:
        """Accepted updates that are in no round, in order of arrival."""
        return self._updates("WHERE handle IS NOT NULL AND round IS NULL ORDER BY seq")

    def waiting_at(self, seq: int, version: int) -> Iterator[UpdateRow]:
        """Accepted updates up to an event that are in no round up to this version, in order of arrival."""
        return self._updates(
            "WHERE seq <= ? AND handle IS NOT NULL AND (round IS NULL OR round > ?) ORDER BY seq",
            seq,
            version,
        )

    def updates_of(self, version: int) -> Iterator[UpdateRow]:
        """The updates of the round that made a version, in the order that it took them in."""
        return self._updates(_OF_ROUND, version)

    def update(self, handle: int) -> UpdateRow | None:
        """An accepted update, None when none has this handle."""
        return next(self._updates("WHERE handle = ?", handle), None)

    def rounds(self, after: int = 0) -> Iterator[RoundRow]:
        """Every round that made a version greater than `after`, in order."""
        for row in self._records(
            row_codec.ROUNDS, row_codec.round_without_members, "WHERE version > ? ORDER BY version", after
        ):
            members = self._records(self._states, row_codec.member, _OF_ROUND, row.version)
            yield row._replace(members=tuple(members))

    def evaluations(self) -> Iterator[EvaluationRow]:
        """Every measurement, in order of versions."""
        return self._records(row_codec.EVALUATIONS, row_codec.evaluation, "ORDER BY version")

    def own_evaluations(self) -> Iterator[OwnEvaluationRow]:
        """What clients measured on their own test examples, in order of arrival."""
        return self._records(row_codec.OWN_EVALUATIONS, row_codec.own_evaluation, "ORDER BY seq")

    def checkpoints(self) -> list[CheckpointRow]:
        """Every checkpoint that was not forgotten, the newest first."""
        return list(self._records(row_codec.CHECKPOINTS, row_codec.checkpoint, "ORDER BY version DESC"))

    def segment_ends(self) -> dict[int, int]:
        """Where the last row of each segment ends, for `Segments.cut`."""
        ends: dict[int, int] = {}
        for row in self._updates("WHERE segment IS NOT NULL"):
            assert row.place is not None
            end = row.place.offset + row.place.size_bytes
            ends[row.place.segment] = max(end, ends.get(row.place.segment, 0))
        return ends

    def segments_behind(self, version: int) -> set[int]:
        """Segments with a row that the model of this version does not hold: pending, or of a later round."""
        return {segment for (segment,) in self._connection.rows(_BEHIND, version)}

    def conservation(self) -> Conservation:
        """What became of the updates, by one query."""
        ((received, aggregated, pending, rejected),) = self._connection.rows("SELECT * FROM conservation")
        return Conservation(received=received, aggregated=aggregated, pending=pending, rejected=rejected)

    def audit(self) -> Audit:
        """Read every row, compare it with its checksum, and rows with one another."""
        tables = self._tables
        found = audits.audit(self._connection, tables)
        if found.damages or self._format != FORMAT:
            return found
        marks, _, then = (self.meta(TOTALS) or "").partition("\n")
        if not then or marks != self.meta(MARKS):
            return found
        changed = audits.differences(then, self._totals())
        return replace(found, damages=tuple(changed))

    def check(self) -> None:
        """Raise DamagedError where `audit` finds damage."""
        damages = self.audit().damages
        if damages:
            more = (
                f"; `unstale verify {self.path.parent}` lists {len(damages) - 1} more" if damages[1:] else ""
            )
            raise self.damaged(f"{damages[0]}{more}")

    def damaged(self, what: str) -> DamagedError:
        """The error for what an audit has found."""
        return self._connection.damaged(what)

    def store_totals(self) -> None:
        """Note how many rows there are, for the next `audit`. Holds until a server starts."""
        self.set_meta({TOTALS: f"{self.meta(MARKS)}\n{self._totals()}"})

    def _totals(self) -> str:
        return audits.totals(
            self._connection, {name: table for name, (table, _) in self._tables.items() if name != "meta"}
        )

    # --- how ---

    @property
    def _tables(self) -> dict[str, tuple[Table, Callable[[Values], Any]]]:
        """Every table, with what makes a record of a row."""
        is_former = self._format != FORMAT
        return {
            "meta": (row_codec.META, tuple),
            "events": (row_codec.EVENTS, audits.event),
            "tasks": (row_codec.TASKS, row_codec.task),
            "updates": (row_codec.UPDATES_3, tuple) if is_former else (row_codec.UPDATES, row_codec.update),
            "rounds": (row_codec.ROUNDS, row_codec.round_without_members),
            "evaluations": (row_codec.EVALUATIONS, row_codec.evaluation),
            "own_evaluations": (row_codec.OWN_EVALUATIONS, row_codec.own_evaluation),
            "checkpoints": (row_codec.CHECKPOINTS, row_codec.checkpoint),
        }

    def _prepared(self, read_only: bool) -> int:
        """Make the database where there is none, and look for damage in its pages; its format."""
        run = self._connection.execute
        version = formats.recognised(self._connection, may_create=not read_only)
        run(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        run(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX}")
        first = run("PRAGMA quick_check(1)").fetchone()
        if first != ("ok",):
            raise self._connection.damaged(" ".join(str(first[0]).split()))
        return version

    def _missing_at_end(self, *, takes_loss: bool) -> int:
        """Number of the events that were stored and are not there. SQLite stops reading its log where that is damaged,
        and takes a missing one for an empty one."""
        found = self.last_seq()
        try:
            newest = self._sequence_file.get()
        except DamagedError:
            if takes_loss:
                return 0
            raise
        if newest > found and not takes_loss:
            raise DamagedError(
                f"{self.path} ends with event {found}, but event {newest} was stored: {self.log.name} is damaged "
                f"or missing; put both back from a copy, or run `unstale restore {self.path.parent}` to resume without "
                "the events that are lost"
            )
        return max(0, newest - found)

    @contextmanager
    def _storing(self, sync: bool) -> Iterator[None]:
        """A transaction; where it fails, what is known of waiting updates is read again."""
        try:
            with self._connection.transaction(sync):
                yield
        except BaseException:
            self._waiting.clear()
            raise

    def _join(self, row: RoundRow) -> None:
        """Note which updates a round was made of."""
        waiting = self._waiting
        if any(member.handle not in waiting for member in row.members):
            found = self._connection.select(row_codec.STATES, "WHERE handle IS NOT NULL AND round IS NULL")
            waiting.update((state[1], state) for state in found)
        states = [
            row_codec.in_round(waiting.pop(member.handle), row.version, place, member)
            for place, member in enumerate(row.members)
            if member.handle in waiting
        ]
        joined = self._connection.update(row_codec.STATES, states, _ROUND_COLUMNS)
        assert joined == len(row.members), f"round {row.version} has members that are not pending"

    def _updates(self, which: str, *values: int) -> Iterator[UpdateRow]:
        if self._format == FORMAT:
            return self._records(row_codec.UPDATES, row_codec.update, which, *values)
        return self._records(
            row_codec.UPDATES_3, lambda row: row_codec.update(row_codec.of_format_3(row)), which, *values
        )

    def _records(
        self, table: Table, record: Callable[[Values], Record], which: str, *values: int | str
    ) -> Iterator[Record]:
        """Rows of a table as records. Raises DamagedError for one that is not what was stored."""
        for row in self._connection.select(table, which, *values):
            try:
                yield record(row)
            except UNREADABLE:
                raise self._connection.damaged(f"{table.row(row)} cannot be read") from None

    @property
    def _states(self) -> Table:
        return row_codec.STATES if self._format == FORMAT else row_codec.STATES_3
