"""SQLite as the journal uses it: rows with checksums, and errors as one sentence."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path

from unstale.errors import UserError
from unstale.journal.disk import DamagedError, NoRoomError
from unstale.journal.tables import ChangedRowError, Table, Values

ROWS_AT_ONCE = 64  # written by one statement
READ_ROWS = 256  # fetched at a time: a run may have a million events
LEAST = (3, 37)  # strict tables


class Connection:
    """A connection to the database of a run. One thread at a time.

    Attributes:
        execute: Executes a statement; errors are those of `sqlite3`.
        executescript: Executes statements; an open transaction is committed first.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        """Open a file, or make it when there is none and not `read_only`. Raises sqlite3.Error."""
        if sqlite3.sqlite_version_info < LEAST:
            least = ".".join(map(str, LEAST))
            raise UserError(
                f"SQLite {sqlite3.sqlite_version} is too old, expected {least} or newer; use a newer Python"
            )
        self.path = path
        self._sync: bool | None = None
        self._connection = sqlite3.connect(
            _uri(path, read_only), uri=True, isolation_level=None, check_same_thread=False
        )
        self.execute = self._connection.execute
        self.executescript = self._connection.executescript

    def close(self) -> None:
        """Nothing more will be asked."""
        with reported(self.path, "close"):
            self._connection.close()

    @contextmanager
    def transaction(self, sync: bool, script: str | None = None) -> Iterator[None]:
        """Store all that is written meanwhile, or nothing.

        Args:
            sync: Return when it is durable.
            script: SQL that begins the transaction, and more.
        """
        with reported(self.path, "write"):
            if sync != self._sync:
                self.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
                self._sync = sync
            try:
                if script is None:
                    self.execute("BEGIN IMMEDIATE")
                else:
                    self.executescript(script)
                yield
                self.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite ends it itself on some errors
                    self.execute("ROLLBACK")
                raise

    def copy_to(self, path: Path) -> None:
        """Write a copy of the whole database. path: of no file; its folder exists."""
        with reported(self.path, "copy"):
            copy = sqlite3.connect(path)
            try:
                self._connection.backup(copy)
            finally:
                copy.close()

    def insert(self, table: Table, values: Iterable[Values], *, replace: bool = False) -> None:
        """Store new rows. replace: also in place of others with the same key."""
        rows = map(table.sealed, values)
        while some := list(islice(rows, ROWS_AT_ONCE)):
            self.execute(table.insert(len(some), replace=replace), [*chain.from_iterable(some)])

    def update(self, table: Table, rows: Iterable[Values], columns: tuple[str, ...]) -> int:
        """Store rows that have changed; how many there are.

        Args:
            table: Of the rows.
            rows: Whole rows.
            columns: Those that differ from what is stored.
        """
        values = map(table.changed(columns), map(table.sealed, rows))
        changed = 0
        while some := list(islice(values, ROWS_AT_ONCE)):
            changed += self.execute(table.update(columns, len(some)), [*chain.from_iterable(some)]).rowcount
        return changed

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read meanwhile is as it was at the first read, whatever a server stores. Nothing is written."""
        with reported(self.path, "read"):
            self.execute("BEGIN")
        try:
            yield
        finally:
            with reported(self.path, "read"):
                self.execute("ROLLBACK")

    def number(self, query: str) -> int | None:
        """Of a query for one number; None for null."""
        ((number,),) = self.rows(query)
        return None if number is None else int(number)

    def rows(self, query: str, *values: int | str) -> Iterator[Values]:
        """Rows as they are stored."""
        with reported(self.path, "read"):
            cursor = self.execute(query, values)
            while rows := cursor.fetchmany(READ_ROWS):
                yield from rows

    def select(self, table: Table, which: str, *values: int | str) -> Iterator[Values]:
        """Rows of a table, each found to be what was stored. Raises DamagedError."""
        return self.opened(table, self.rows(f"{table.select} {which}", *values))

    def opened(self, table: Table, rows: Iterable[Values]) -> Iterator[Values]:
        """The same for rows that were read. Raises DamagedError."""
        for found in rows:
            try:
                yield table.opened(found)
            except ChangedRowError as error:
                raise self.damaged(str(error)) from None

    def damaged(self, what: str) -> DamagedError:
        """The error for what is not there as it was stored."""
        return damaged(self.path, what)


def damaged(path: Path, what: str) -> DamagedError:
    """The error for a database that is damaged. what: the damage."""
    return DamagedError(
        f"{path} is damaged ({what}); put it back from a copy, or start anew in another --run directory"
    )


@contextmanager
def reported(path: Path, doing: str) -> Iterator[None]:
    """Turn SQLite's errors into UserError, but those that are our own mistake.

    Args:
        path: Of the database.
        doing: Such as "read".
    """
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except UnicodeDecodeError:  # Python's, from the schema
        raise damaged(path, "text that is not UTF-8") from None
    except sqlite3.Error as error:
        # Python's own, such as text that is no UTF-8, have no code.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise damaged(path, str(error)) from None
        if code == sqlite3.SQLITE_FULL:
            raise NoRoomError(f"cannot {doing} {path}: the disk is full; make room") from None
        why = " ".join(str(error).split())
        raise UserError(f"cannot {doing} {path}: {why}{_WHAT_TO_DO.get(code, '')}") from None


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
