"""`run.db`: everything that happened in a run, except the numbers of updates, in SQLite."""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from unstale.journal import audit as audits
from unstale.journal import formats, records, row_codec
from unstale.journal.audit import UNREADABLE, Audit
from unstale.journal.disk import boot
from unstale.journal.row_codec import Codec
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
from unstale.journal.sqlite import Connection, sqlite_errors
from unstale.journal.tables import META, TOTALS
from unstale_client.disk import DamagedError

WAL_PAGES = 8192  # of 4 KiB; SQLite's default of 1,000 takes twice the time to store a turn
WAL_BYTES_MAX = 64 * 1024**2  # a long read may let the log grow beyond this; it is truncated then

_OF_ROUND = "WHERE handle IS NOT NULL AND round = ? ORDER BY position"
_ROUND_COLUMNS = ("round", "position", "staleness", "weight")
_LAST_SEQ = (
    "SELECT max(seq) FROM (SELECT max(seq) AS seq FROM events UNION ALL SELECT max(seq) FROM updates "
    "UNION ALL SELECT max(seq) FROM checkpoints)"
)
_FIRST_S = "SELECT min(at_s) FROM (SELECT seq, at_s FROM events UNION ALL SELECT seq, at_s FROM updates) WHERE seq >= ?"
_FIRST_VERSION = "SELECT min(json_extract(fields, '$.version')) FROM events WHERE seq >= ? AND kind = 'RoundApplied'"
_SEGMENTS = "SELECT DISTINCT segment FROM updates WHERE segment IS NOT NULL"

Record = TypeVar("Record")

BOOT = "boot"  # id of the boot of the machine that last wrote to the database
MARKS = "marks"  # of the files of the directory, before and after the last server started
SYNCED = "synced"  # seq up to which all events were known to be durable


@dataclass(frozen=True, slots=True)
class Conservation:
    """Counts of updates with a verdict: received = aggregated + pending + rejected."""

    received: int
    aggregated: int
    pending: int
    rejected: int


class Database:
    """The database of a run. One thread at a time.

    Errors of the disk and of SQLite are raised as UserError, damage as DamagedError.
    """

    def __init__(self, path: Path, *, read_only: bool = False, takes_loss: bool = False) -> None:
        """Open the database, or create it unless `read_only`. takes_loss: accept that events at its end are lost."""
        self.path = path
        self.log = path.with_name(f"{path.name}-wal")  # SQLite's; all that was stored is durable after a sync of it
        self._pending: dict[int, row_codec.State] = {}  # by handle: a cache
        with ExitStack() as stack, sqlite_errors(path, "open"):
            self._connection = Connection(path, read_only=read_only)
            stack.callback(self._connection.close)
            self._format = self._prepare(read_only)
            self._sequence_file = SequenceFile(path.with_name(f"{path.name}-newest"), read_only=read_only)
            stack.callback(self._sequence_file.close)
            last_boot = self.meta(BOOT)
            # Since the last write, perhaps: that loses unsynced events.
            self.machine_restarted = last_boot is not None and (last_boot == "" or last_boot != boot())
            # Number of events at the end that are known to be lost.
            self.missing = self._missing_at_end(takes_loss=takes_loss or self.machine_restarted)
            if self._format != FORMAT and not read_only:
                for damage in self._changed_totals():
                    raise self._connection.damaged(damage)
                formats.convert(self._connection, self._format)
                self._format = FORMAT
            stack.pop_all()

    def close(self) -> None:
        self._sequence_file.close()
        self._connection.close()

    # --- writing ---

    def store(self, batch: Batch, *, sync: bool) -> None:
        """Store a batch in one transaction. sync: return when it and all before it is durable; not if it is empty."""
        if not batch:
            return
        try:
            with self._connection.transaction(sync):
                for codec in row_codec.CODECS:
                    # A run that resumes may evaluate and save a version again.
                    replaces = codec in (row_codec.EVALUATIONS, row_codec.CHECKPOINTS)
                    self._insert(codec, getattr(batch, codec.table.name), replace=replaces)
                for row in batch.updates:
                    if row.handle is not None:
                        segment = row.location and row.location.segment
                        self._pending[row.handle] = row_codec.State(row.seq, row.handle, segment)
                for applied in batch.rounds:
                    self._join(applied)
                if batch.synced is not None:
                    self._connection.insert(META, [(SYNCED, str(batch.synced))], replace=True)
        except BaseException:
            self._pending.clear()
            raise
        last_seq = batch.last_seq
        if last_seq is not None:
            self._sequence_file.set(last_seq)

    def set_meta(self, values: Mapping[str, str]) -> None:
        """Store facts about the whole run by key; durable at once."""
        with self._connection.transaction(sync=True):
            self._connection.insert(META, values.items(), replace=True)

    @property
    def newest_is_missing(self) -> bool:
        """Whether the file with the number of the newest event was missing at the start."""
        return self._sequence_file.is_missing

    def end_here(self) -> None:
        """Make the last stored event the newest."""
        self._sequence_file.set(self.last_seq())

    def cut_back(self, seq: int) -> None:
        """Delete this event and all later ones, which no checkpoint covers."""
        self._pending.clear()
        with self._connection.transaction(sync=True):
            run = self._connection.execute
            ((at_s,),) = run(_FIRST_S, (seq,)).fetchall()
            ((version,),) = run(_FIRST_VERSION, (seq,)).fetchall()
            if version is not None:
                states = [state.without_round for state in self._states("WHERE round >= ?", version)]
                self._connection.update(row_codec.STATES, states, _ROUND_COLUMNS)
                run("DELETE FROM evaluations WHERE version >= ?", (version,))
                run("DELETE FROM rounds WHERE version >= ?", (version,))
            self._delete_from(seq, at_s)
        self.end_here()

    def rewind(self, checkpoint: CheckpointRow, pending: Collection[UpdateRow], facts: Mapping[str, str]) -> None:
        """Delete all that happened after a checkpoint, which has no pending updates and open tasks.

        pending: updates of `pending_at` the checkpoint, as they are to be kept. facts: for `set_meta`, in the same
        transaction.
        """
        version = checkpoint.version
        with self._connection.transaction(sync=True):
            run = self._connection.execute
            for row in pending:
                run("DELETE FROM own_evaluations WHERE seq = ?", (row.seq,))
            self._delete_from(checkpoint.seq + 1, checkpoint.at_s)
            run("DELETE FROM checkpoints WHERE version >= ?", (version,))
            self._insert(row_codec.UPDATES, pending, replace=True)
            run("DELETE FROM evaluations WHERE version > ?", (version,))
            run("DELETE FROM rounds WHERE version > ?", (version,))
            self._insert(row_codec.CHECKPOINTS, [checkpoint])
            self._connection.insert(META, facts.items(), replace=True)
        self._pending.clear()
        self.end_here()

    def copy_to(self, path: Path) -> None:
        self._connection.copy_to(path)

    def forget_checkpoints(self, before_version: int) -> None:
        """Forget older checkpoints. Here and below: files may be deleted after the next sync."""
        self._forget("DELETE FROM checkpoints WHERE version < ?", before_version)

    def forget_checkpoint(self, version: int) -> None:
        """Forget a damaged checkpoint."""
        self._forget("DELETE FROM checkpoints WHERE version = ?", version)

    def forget_events(self, up_to_seq: int) -> None:
        """Forget events that every checkpoint covers."""
        self._forget("DELETE FROM events WHERE seq <= ?", up_to_seq)

    def forget_segments(self, kept: Collection[int]) -> None:
        """Forget the places of rows in other segments."""
        with self._connection.transaction(sync=False):
            stored_in = {segment for (segment,) in self._connection.rows(_SEGMENTS)}
            for segment in stored_in - set(kept):
                states = [state._replace(segment=None) for state in self._states("WHERE segment = ?", segment)]
                self._connection.update(row_codec.STATES, states, ("segment",))

    # --- reading ---

    def snapshot(self) -> AbstractContextManager[None]:
        """Read the state of one moment in the block, even while a server writes."""
        return self._connection.snapshot()

    def meta(self, key: str) -> str | None:
        """A fact about the run, None without one."""
        return next((value for _, value in self._connection.select(META, "WHERE key = ?", key)), None)

    def started_s(self) -> float | None:
        """Time of the first task, None without one."""
        ((at_s,),) = self._connection.rows("SELECT min(at_s) FROM tasks")
        return None if at_s is None else float(at_s)

    def last_seq(self) -> int:
        """Number of the last stored event, 0 without one."""
        return self._connection.number(_LAST_SEQ) or 0

    def last_version(self) -> int:
        """The last version that a round made, 0 without one."""
        return self._connection.number("SELECT max(version) FROM rounds") or 0

    def last_handle(self) -> int:
        """The greatest handle, -1 without one."""
        return self._connection.number("SELECT ifnull(max(handle), -1) FROM updates") or 0

    def events_after(self, seq: int) -> Iterator[EventRow]:
        """Later events, in order. Raises DamagedError where one is missing or damaged."""
        others = self._records(row_codec.EVENTS, "WHERE seq > ? ORDER BY seq", seq)
        arrivals = map(records.arrival, self.updates_after(seq))
        for row in heapq.merge(others, arrivals, key=attrgetter("seq")):
            seq += 1
            if row.seq != seq:
                raise self._connection.damaged(f"event {seq} is missing")
            yield row

    def tasks(self) -> Iterator[TaskRow]:
        """All tasks by id."""
        return self._records(row_codec.TASKS, "ORDER BY task_id")

    def task(self, task_id: int) -> TaskRow | None:
        """A task, None for an unknown id."""
        return next(self._records(row_codec.TASKS, "WHERE task_id = ?", task_id), None)

    def updates_after(self, seq: int) -> Iterator[UpdateRow]:
        """Updates after an event, rejected ones too, in order."""
        return self._updates("WHERE seq > ? ORDER BY seq", seq)

    def pending(self) -> Iterator[UpdateRow]:
        """Accepted updates in no round, in order of arrival."""
        return self._updates("WHERE handle IS NOT NULL AND round IS NULL ORDER BY seq")

    def pending_at(self, seq: int, version: int) -> Iterator[UpdateRow]:
        """Accepted updates up to an event that no round up to a version holds, in order of arrival."""
        return self._updates(
            "WHERE seq <= ? AND handle IS NOT NULL AND (round IS NULL OR round > ?) ORDER BY seq", seq, version
        )

    def updates_of(self, version: int) -> Iterator[UpdateRow]:
        """The updates of the round that made a version, in order."""
        return self._updates(_OF_ROUND, version)

    def update(self, handle: int) -> UpdateRow | None:
        """An accepted update, None for an unknown handle."""
        return next(self._updates("WHERE handle = ?", handle), None)

    def rounds(self, after: int = 0) -> Iterator[RoundRow]:
        """Rounds that made later versions, in order."""
        for row in self._records(row_codec.ROUNDS, "WHERE version > ? ORDER BY version", after):
            yield row._replace(members=tuple(state.member for state in self._states(_OF_ROUND, row.version)))

    def evaluations(self, after: int = -1) -> Iterator[EvaluationRow]:
        """Evaluations of later versions, in order."""
        return self._records(row_codec.EVALUATIONS, "WHERE version > ? ORDER BY version", after)

    def own_evaluations(self, after: int = 0) -> Iterator[OwnEvaluationRow]:
        """Evaluations of clients on their own test examples after an event, in order of arrival."""
        return self._records(row_codec.OWN_EVALUATIONS, "WHERE seq > ? ORDER BY seq", after)

    def checkpoints(self) -> list[CheckpointRow]:
        """Checkpoints, newest first."""
        return list(self._records(row_codec.CHECKPOINTS, "ORDER BY version DESC"))

    def segment_ends(self) -> dict[int, int]:
        """Offset where the last row of each segment ends, for `Segments.cut`."""
        ends: dict[int, int] = {}
        for row in self._updates("WHERE segment IS NOT NULL"):
            assert row.location is not None
            end = row.location.offset + row.location.size_bytes
            ends[row.location.segment] = max(end, ends.get(row.location.segment, 0))
        return ends

    def segments_after(self, version: int) -> set[int]:
        """Segments with a row that is pending, or of a round after a version."""
        query = f"{_SEGMENTS} AND (round IS NULL OR round > ?)"
        return {segment for (segment,) in self._connection.rows(query, version)}

    def is_complete(self) -> bool:
        """Whether all events and accepted updates since the start of the run are stored."""
        gone = self._connection.number("SELECT count(*) FROM updates WHERE handle IS NOT NULL AND segment IS NULL")
        stored = self._connection.number("SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM updates)")
        return gone == 0 and stored == self.last_seq()

    def seq_of(self, version: int) -> int | None:
        """Number of the event that made a version, None where it is not stored."""
        return self._connection.number(
            "SELECT max(seq) FROM events WHERE kind = 'RoundApplied' AND json_extract(fields, '$.version') = ?", version
        )

    def is_target_reached(self) -> bool:
        """Whether a metric has reached the value that ends the run."""
        return self._connection.number("SELECT count(*) FROM events WHERE kind = 'TargetReached'") != 0

    def conservation(self) -> Conservation:
        """Counts of updates, by one query."""
        (counts,) = self._connection.rows("SELECT * FROM conservation")
        return Conservation(*counts)

    def audit(self) -> Audit:
        """Verify the checksum of every row, and compare rows with one another."""
        audit = audits.audit(self._connection, self._codecs)
        if audit.damages:
            return audit
        return replace(audit, damages=self._changed_totals())

    def check(self) -> None:
        """Raise DamagedError where `audit` finds damage."""
        damages = self.audit().damages
        if damages:
            more = f"; `unstale verify {self.path.parent}` lists {len(damages) - 1} more" if damages[1:] else ""
            raise self.damaged(f"{damages[0]}{more}")

    def damaged(self, damage: str) -> DamagedError:
        return self._connection.damaged(damage)

    def store_totals(self) -> None:
        """Store the numbers of rows for the next `audit`. Valid until a server starts."""
        self.set_meta({TOTALS: f"{self.meta(MARKS)}\n{self._totals()}"})

    def _changed_totals(self) -> tuple[str, ...]:
        """Changes since the last server ended, as far as rows and checksums add up to other totals."""
        marks, _, totals = (self.meta(TOTALS) or "").partition("\n")
        if not totals or marks != self.meta(MARKS):
            return ()
        return tuple(audits.differences(totals, self._totals()))

    def _totals(self) -> str:
        return audits.totals(self._connection, [codec.table for codec in self._codecs])

    # --- internals ---

    @property
    def _codecs(self) -> list[Codec[Any]]:
        """Of all tables but `meta`."""
        return [row_codec.in_format(codec, self._format) for codec in row_codec.CODECS]

    def _prepare(self, read_only: bool) -> int:
        """Create the tables in a new database, and check its pages; returns its format."""
        run = self._connection.execute
        version = formats.create_or_check(self._connection, may_create=not read_only)
        run(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        run(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX}")
        (result,) = run("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise self._connection.damaged(" ".join(str(result).split()))
        return version

    def _missing_at_end(self, *, takes_loss: bool) -> int:
        """Number of lost events: SQLite stops reading its log where it is damaged, and ignores a missing one."""
        try:
            newest = self._sequence_file.get()
        except DamagedError:
            if takes_loss:
                return 0
            raise
        last = self.last_seq()  # after `newest`: a server may store events between the two
        if newest > last and not takes_loss:
            raise DamagedError(
                f"{self.path} ends with event {last}, but event {newest} was stored: {self.log.name} is damaged "
                f"or missing; put both back from a copy, or run `unstale restore {self.path.parent}` to resume without "
                "the events that are lost"
            )
        return max(0, newest - last)

    def _insert(self, codec: Codec[Record], rows: Iterable[Record], *, replace: bool = False) -> None:
        self._connection.insert(codec.table, map(codec.encode, rows), replace=replace)

    def _forget(self, statement: str, number: int) -> None:
        with self._connection.transaction(sync=False):
            self._connection.execute(statement, (number,))

    def _delete_from(self, seq: int, at_s: float) -> None:
        """Delete events from a number on, and tasks from a time on."""
        self._connection.execute("DELETE FROM tasks WHERE at_s >= ?", (at_s,))
        self._connection.execute("DELETE FROM own_evaluations WHERE seq >= ?", (seq,))
        self._connection.execute("DELETE FROM updates WHERE seq >= ?", (seq,))
        self._connection.execute("DELETE FROM events WHERE seq >= ?", (seq,))

    def _join(self, row: RoundRow) -> None:
        """Store which updates a round was made of."""
        pending = self._pending
        if any(member.handle not in pending for member in row.members):
            states = self._states("WHERE handle IS NOT NULL AND round IS NULL")
            pending.update((state.handle, state) for state in states)
        joined = [
            pending.pop(member.handle).in_round(row.version, position, member)
            for position, member in enumerate(row.members)
            if member.handle in pending
        ]
        updated = self._connection.update(row_codec.STATES, joined, _ROUND_COLUMNS)
        assert updated == len(row.members), f"round {row.version} has members that are not pending"

    def _updates(self, condition: str, *values: int) -> Iterator[UpdateRow]:
        return self._records(row_codec.UPDATES, condition, *values)

    def _records(self, codec: Codec[Record], condition: str, *values: int) -> Iterator[Record]:
        """Rows of a table as records. Raises DamagedError for a damaged row."""
        codec = row_codec.in_format(codec, self._format)
        for row in self._connection.select(codec.table, condition, *values):
            try:
                yield codec.decode(row)
            except UNREADABLE:
                raise self._connection.damaged(f"{codec.table.row(row)} cannot be read") from None

    def _states(self, condition: str, *values: int) -> Iterator[row_codec.State]:
        rows = self._connection.select(row_codec.states(self._format), condition, *values)
        return map(row_codec.State._make, rows)
