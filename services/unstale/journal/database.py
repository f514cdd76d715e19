"""`run.db`: everything that happened in a run but the bytes of updates, in SQLite."""

import heapq
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path

from unstale.errors import UserError
from unstale.journal import records, stored
from unstale.journal.disk import DamagedError, NoRoomError, boot
from unstale.journal.newest import Newest
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
from unstale.journal.schema import APPLICATION, FORMAT, SCHEMA
from unstale.journal.stored import Table, Values

# Of 4 KiB, after which SQLite moves them into the database. That syncs twice: with its own default of 1,000 it took as
# long as all else that is done to store a turn.
WAL_PAGES = 8192
WAL_BYTES_MAX = 64 * 1024**2  # what a long read may have let it grow to is given back
ROWS_AT_ONCE = 64  # written by one statement
READ_ROWS = 256  # fetched at a time: a run may have a million events
_SQLITE_MIN = (3, 37)  # strict tables

_JOIN = (
    "UPDATE updates SET round = new.column1, position = new.column2, staleness = new.column3, weight = new.column4 "
    "FROM (VALUES {}) AS new WHERE handle = new.column5 AND round IS NULL"
)
_LAST_SEQ = (
    "SELECT max(seq) FROM (SELECT max(seq) AS seq FROM events UNION ALL SELECT max(seq) FROM updates "
    "UNION ALL SELECT max(seq) FROM checkpoints)"
)
_FIRST_S = "SELECT min(at_s) FROM (SELECT seq, at_s FROM events UNION ALL SELECT seq, at_s FROM updates) WHERE seq >= ?"
_SEGMENTS = "SELECT DISTINCT segment FROM updates WHERE segment IS NOT NULL"
_BEHIND = f"{_SEGMENTS} AND (round IS NULL OR round > ?)"


BOOT = "boot"  # of the machine on which the database was last written to
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
        self._sync: bool | None = None
        with ExitStack() as stack, self._reported("open"):
            self._connection = sqlite3.connect(
                _uri(path, read_only), uri=True, isolation_level=None, check_same_thread=False
            )
            stack.callback(self._connection.close)
            self._prepare(read_only)
            self._newest = Newest(path.with_name(f"{path.name}-newest"), read_only=read_only)
            stack.callback(self._newest.close)
            before = self.meta(BOOT)
            self.machine_restarted = before is not None and (before == "" or before != boot())
            self.missing = self._missing_at_end(takes_loss=takes_loss or self.machine_restarted)
            stack.pop_all()

    def close(self) -> None:
        """Nothing more will be asked."""
        self._newest.close()
        with self._reported("close"):
            self._connection.close()

    # --- writing ---

    def store(self, batch: Batch, *, sync: bool) -> None:
        """Store all of it or, when that raises, nothing. sync: return when it and all before it is durable.

        An empty batch stores nothing, and syncs nothing.
        """
        if not batch:
            return
        with self._transaction(sync):
            self._insert(stored.EVENTS, map(stored.of_event, batch.events))
            self._insert(stored.TASKS, map(stored.of_task, batch.tasks))
            self._insert(stored.UPDATES, map(stored.of_update, batch.updates))
            self._insert(stored.OWN_EVALUATIONS, map(stored.of_own_evaluation, batch.own_evaluations))
            self._insert(stored.ROUNDS, map(stored.of_round, batch.rounds))
            for row in batch.rounds:
                self._join(row)
            # A run that is taken up measures, and saves, a version again: what comes last stays.
            self._insert(stored.EVALUATIONS, map(stored.of_evaluation, batch.evaluations), replace=True)
            self._insert(stored.CHECKPOINTS, map(stored.of_checkpoint, batch.checkpoints), replace=True)
            if batch.synced is not None:
                self._insert(stored.META, [(SYNCED, str(batch.synced))], replace=True)
        last_seq = batch.last_seq
        if last_seq is not None:
            self._newest.set(last_seq)

    def set_meta(self, values: Mapping[str, str]) -> None:
        """Facts about the run as a whole, each under a key; durable at once, as all that follows is."""
        with self._transaction(sync=True):
            self._insert(stored.META, values.items(), replace=True)

    @property
    def newest_is_missing(self) -> bool:
        """Whether the file with the number of the newest event was missing when this was opened."""
        return self._newest.is_missing

    def end_here(self) -> None:
        """The last event that is there is the newest."""
        self._newest.set(self.last_seq())

    def cut_back(self, seq: int) -> None:
        """Forget that this event, and any behind it, ever happened. None of them is covered by a checkpoint."""
        with self._transaction(sync=True):
            run = self._connection.execute
            ((at_s,),) = run(_FIRST_S, (seq,)).fetchall()
            ((version,),) = run(
                "SELECT min(json_extract(fields, '$.version')) FROM events WHERE seq >= ? AND kind = 'RoundApplied'",
                (seq,),
            ).fetchall()
            if version is not None:
                run(
                    "UPDATE updates SET round = NULL, position = NULL, staleness = NULL, weight = NULL "
                    "WHERE round >= ?",
                    (version,),
                )
                run("DELETE FROM evaluations WHERE version >= ?", (version,))
                run("DELETE FROM rounds WHERE version >= ?", (version,))
            run("DELETE FROM tasks WHERE at_s >= ?", (at_s,))
            run("DELETE FROM own_evaluations WHERE seq >= ?", (seq,))
            run("DELETE FROM updates WHERE seq >= ?", (seq,))
            run("DELETE FROM events WHERE seq >= ?", (seq,))
        self.end_here()

    def forget_checkpoints(self, before_version: int) -> None:
        """Of older versions. Here and below: durable with what is synced next, and then their files may be deleted."""
        with self._transaction(sync=False):
            self._connection.execute("DELETE FROM checkpoints WHERE version < ?", (before_version,))

    def forget_checkpoint(self, version: int) -> None:
        """Of this version, which is not whole."""
        with self._transaction(sync=False):
            self._connection.execute("DELETE FROM checkpoints WHERE version = ?", (version,))

    def forget_events(self, up_to_seq: int) -> None:
        """Those that every checkpoint covers."""
        with self._transaction(sync=False):
            self._connection.execute("DELETE FROM events WHERE seq <= ?", (up_to_seq,))

    def forget_segments(self, kept: Collection[int]) -> None:
        """Rows in other segments than these have no place any more."""
        with self._transaction(sync=False):
            stored_in = {segment for (segment,) in self._rows(_SEGMENTS)}
            gone = [(segment,) for segment in stored_in - set(kept)]
            self._connection.executemany("UPDATE updates SET segment = NULL WHERE segment = ?", gone)

    # --- reading ---

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read meanwhile is as it was at the first read, whatever a server stores. Nothing is written."""
        with self._reported("read"):
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            with self._reported("read"):
                self._connection.execute("ROLLBACK")

    def meta(self, key: str) -> str | None:
        """A fact about the run, None when it was never said."""
        return next((value for _, value in self._select(stored.META, "WHERE key = ?", key)), None)

    def started_s(self) -> float | None:
        """When the first task was given, None before."""
        ((at_s,),) = self._rows("SELECT min(at_s) FROM tasks")
        return None if at_s is None else float(at_s)

    def last_seq(self) -> int:
        """Of the last event that was stored, 0 when there is none."""
        return self._number(_LAST_SEQ) or 0

    def last_version(self) -> int:
        """The greatest that a round made, 0 when there is none."""
        return self._number("SELECT max(version) FROM rounds") or 0

    def last_handle(self) -> int:
        """The greatest of an accepted update, -1 when there is none."""
        handle = self._number("SELECT max(handle) FROM updates")
        return -1 if handle is None else handle

    def events_after(self, seq: int) -> Iterator[EventRow]:
        """Every event behind that one, in order. Raises DamagedError where one is missing or is not what it was."""
        others = map(stored.event, self._select(stored.EVENTS, "WHERE seq > ? ORDER BY seq", seq))
        arrivals = map(records.arrival, self.updates_after(seq))
        for row in heapq.merge(others, arrivals, key=attrgetter("seq")):
            seq += 1
            if row.seq != seq:
                raise self._damaged(f"event {seq} is missing")
            yield row

    def tasks(self) -> Iterator[TaskRow]:
        """Every task, in order of their ids."""
        return map(stored.task, self._select(stored.TASKS, "ORDER BY task_id"))

    def updates_after(self, seq: int) -> Iterator[UpdateRow]:
        """Every update whose event is behind that one, rejected ones too, in order."""
        return self._updates("WHERE seq > ? ORDER BY seq", seq)

    def pending(self) -> Iterator[UpdateRow]:
        """Accepted updates that are in no round, in order of arrival."""
        return self._updates("WHERE handle IS NOT NULL AND round IS NULL ORDER BY seq")

    def updates_of(self, version: int) -> Iterator[UpdateRow]:
        """The updates of the round that made a version, in the order that it took them in."""
        return self._updates("WHERE handle IS NOT NULL AND round = ? ORDER BY position", version)

    def update(self, handle: int) -> UpdateRow | None:
        """An accepted update, None when none has this handle."""
        return next(self._updates("WHERE handle = ?", handle), None)

    def rounds(self, after: int = 0) -> Iterator[RoundRow]:
        """Every round that made a version greater than `after`, in order."""
        for values in self._select(stored.ROUNDS, "WHERE version > ? ORDER BY version", after):
            yield stored.round_(values, tuple(map(stored.member, self._rows(stored.MEMBERS, values[0]))))

    def evaluations(self) -> Iterator[EvaluationRow]:
        """Every measurement, in order of versions."""
        return map(stored.evaluation, self._select(stored.EVALUATIONS, "ORDER BY version"))

    def own_evaluations(self) -> Iterator[OwnEvaluationRow]:
        """What clients measured on their own test examples, in order of arrival."""
        return map(stored.own_evaluation, self._select(stored.OWN_EVALUATIONS, "ORDER BY seq"))

    def checkpoints(self) -> list[CheckpointRow]:
        """Every checkpoint that was not forgotten, the newest first."""
        return list(map(stored.checkpoint, self._select(stored.CHECKPOINTS, "ORDER BY version DESC")))

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
        return {segment for (segment,) in self._rows(_BEHIND, version)}

    def conservation(self) -> Conservation:
        """What became of the updates, by one query."""
        ((received, aggregated, pending, rejected),) = self._rows("SELECT * FROM conservation")
        return Conservation(received=received, aggregated=aggregated, pending=pending, rejected=rejected)

    # --- how ---

    def _prepare(self, read_only: bool) -> None:
        run = self._connection.execute
        if sqlite3.sqlite_version_info < _SQLITE_MIN:
            least = ".".join(map(str, _SQLITE_MIN))
            raise UserError(
                f"SQLite {sqlite3.sqlite_version} is too old, expected {least} or newer; use a newer Python"
            )
        (application,), (version,) = (
            run(f"PRAGMA {fact}").fetchone() for fact in ("application_id", "user_version")
        )
        is_empty = run("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
        if is_empty and not read_only:
            self._create()
        elif application != APPLICATION:
            raise UserError(f"{self.path} is not the database of a run; name another --run directory")
        elif version != FORMAT:
            raise UserError(
                f"{self.path} has format {version}, expected {FORMAT}; go on with the version of unstale that made it, "
                "or name another --run directory"
            )
        run(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        run(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX}")
        first = run("PRAGMA quick_check(1)").fetchone()
        if first != ("ok",):
            raise self._damaged(" ".join(str(first[0]).split()))

    def _missing_at_end(self, *, takes_loss: bool) -> int:
        """Number of the events that were stored and are not there. SQLite stops reading its log where that is damaged,
        and takes a missing one for an empty one."""
        found = self.last_seq()
        try:
            newest = self._newest.get()
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

    def _create(self) -> None:
        mode = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != ("wal",):
            raise UserError(
                f"cannot open {self.path}: its file system takes no write-ahead log; name a folder on a local disk"
            )
        self._connection.executescript(
            f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; {SCHEMA} COMMIT;"
        )
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # without its log it is still a run's

    @contextmanager
    def _transaction(self, sync: bool) -> Iterator[None]:
        with self._reported("write"):
            if sync != self._sync:
                self._connection.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
                self._sync = sync
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite ends it itself on some errors
                    self._connection.execute("ROLLBACK")
                raise

    def _insert(self, table: Table, values: Iterable[Values], *, replace: bool = False) -> None:
        rows = list(map(table.sealed, values))
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            self._connection.execute(table.insert(len(some), replace=replace), [*chain.from_iterable(some)])

    def _join(self, row: RoundRow) -> None:
        """Note which updates a round was made of."""
        joined = 0
        members = stored.of_members(row)
        for start in range(0, len(members), ROWS_AT_ONCE):
            some = members[start : start + ROWS_AT_ONCE]
            rows = ", ".join(["(?, ?, ?, ?, ?)"] * len(some))
            joined += self._connection.execute(_JOIN.format(rows), [*chain.from_iterable(some)]).rowcount
        assert joined == len(members), f"round {row.version} has members that are not pending"

    def _number(self, query: str) -> int | None:
        ((number,),) = self._rows(query)
        return None if number is None else int(number)

    def _rows(self, query: str, *values: int | str) -> Iterator[Values]:
        with self._reported("read"):
            cursor = self._connection.execute(query, values)
            while rows := cursor.fetchmany(READ_ROWS):
                yield from rows

    def _select(self, table: Table, which: str, *values: int | str) -> Iterator[Values]:
        """Rows of a table, each found to be what was stored."""
        for found in self._rows(f"{table.select} {which}", *values):
            try:
                yield table.opened(found)
            except stored.ChangedRowError as error:
                raise self._damaged(str(error)) from None

    def _updates(self, which: str, *values: int) -> Iterator[UpdateRow]:
        return map(stored.update, self._select(stored.UPDATES, which, *values))

    def _damaged(self, what: str) -> DamagedError:
        return DamagedError(
            f"{self.path} is damaged ({what}); put it back from a copy, or start anew in another --run directory"
        )

    @contextmanager
    def _reported(self, doing: str) -> Iterator[None]:
        """Turn SQLite's errors into a sentence, but those that are our own mistake."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise
        except UnicodeDecodeError:  # Python's, from the schema
            raise self._damaged("text that is not UTF-8") from None
        except sqlite3.Error as error:
            # Python's own, such as text that is no UTF-8, have no code.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise self._damaged(str(error)) from None
            if code == sqlite3.SQLITE_FULL:
                raise NoRoomError(f"cannot {doing} {self.path}: the disk is full; make room") from None
            why = " ".join(str(error).split())
            raise UserError(f"cannot {doing} {self.path}: {why}{_WHAT_TO_DO.get(code, '')}") from None


_WHAT_TO_DO = {
    sqlite3.SQLITE_READONLY: "; name a folder where you may write",
    sqlite3.SQLITE_CANTOPEN: "; name a folder where you may read and write",
    sqlite3.SQLITE_IOERR: "; see whether its disk is full or fails",
    sqlite3.SQLITE_BUSY: "; end the program that has it open for writing",
    sqlite3.SQLITE_LOCKED: "; end the program that has it open for writing",
}


def _uri(path: Path, read_only: bool) -> str:
    """For `sqlite3.connect`. At rest it is read without the files that SQLite would make beside it."""
    uri = path.absolute().as_uri()
    if not read_only:
        return f"{uri}?mode=rwc"
    is_open = path.with_name(f"{path.name}-wal").exists()
    return f"{uri}?mode=ro" if is_open else f"{uri}?mode=ro&immutable=1"
