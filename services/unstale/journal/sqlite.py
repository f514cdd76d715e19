"""A connection to `run.db` that verifies checksums of rows and raises one-line errors."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path

from unstale.errors import UserError
from unstale.journal.tables import ChangedRowError, Table, Values
from unstale_client.disk import DamagedError, NoRoomError

_WRITE_ROWS = 64  # per statement
_READ_ROWS = 256  # per fetch: a run may have a million events
_VERSION_MIN = (3, 37)  # of SQLite, for strict tables


class Connection:
    """A connection to the database of a run. One thread at a time.

    `execute` and `executescript` raise the errors of `sqlite3`; the latter first commits an open transaction.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        """Open a file, or create it unless `read_only`. Raises sqlite3.Error."""
        if sqlite3.sqlite_version_info < _VERSION_MIN:
            expected = ".".join(map(str, _VERSION_MIN))
            raise UserError(
                f"SQLite {sqlite3.sqlite_version} is too old, expected {expected} or newer; use a newer Python"
            )
        self.path = path
        self._sync: bool | None = None  # of the latest transaction
        # A write-ahead log exists while a process has the database open. `immutable` creates none for a reader.
        is_open = path.with_name(f"{path.name}-wal").exists()
        mode = "rwc" if not read_only else "ro" if is_open else "ro&immutable=1"
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        self.execute = self._connection.execute
        self.executescript = self._connection.executescript

    def close(self) -> None:
        with sqlite_errors(self.path, "close"):
            self._connection.close()

    @contextmanager
    def transaction(self, sync: bool, script: str | None = None) -> Iterator[None]:
        """Execute the block as a transaction. sync: return when it is durable. script: SQL that starts with BEGIN."""
        with sqlite_errors(self.path, "write"):
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
                if self._connection.in_transaction:  # on some errors SQLite has rolled back
                    self.execute("ROLLBACK")
                raise

    def copy_to(self, path: Path) -> None:
        """Write a copy of the database to a new file."""
        with sqlite_errors(self.path, "copy"), closing(sqlite3.connect(path)) as copy:
            self._connection.backup(copy)

    def insert(self, table: Table, values: Iterable[Values], *, replace: bool = False) -> None:
        """Insert rows. replace: overwrite rows with the same key."""
        rows = map(table.sealed, values)
        while batch := list(islice(rows, _WRITE_ROWS)):
            self.execute(table.insert(len(batch), replace=replace), [*chain.from_iterable(batch)])

    def update(self, table: Table, rows: Iterable[Values], columns: tuple[str, ...]) -> int:
        """Set these columns in existing rows. rows: values of all columns. Returns the number of rows found."""
        values = map(table.changed(columns), map(table.sealed, rows))
        changed = 0
        while batch := list(islice(values, _WRITE_ROWS)):
            changed += self.execute(table.update(columns, len(batch)), [*chain.from_iterable(batch)]).rowcount
        return changed

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all reads in the block see the same state, even while a server writes."""
        with sqlite_errors(self.path, "read"):
            self.execute("BEGIN")
        try:
            yield
        finally:
            with sqlite_errors(self.path, "read"):
                self.execute("ROLLBACK")

    def number(self, query: str, *values: int) -> int | None:
        """The single number that a query selects; None for null."""
        ((number,),) = self.rows(query, *values)
        return None if number is None else int(number)

    def rows(self, query: str, *values: int | str) -> Iterator[Values]:
        """Rows as stored, with unverified checksums."""
        with sqlite_errors(self.path, "read"):
            cursor = self.execute(query, values)
            while rows := cursor.fetchmany(_READ_ROWS):
                yield from rows

    def select(self, table: Table, condition: str, *values: int | str) -> Iterator[Values]:
        """Rows of a table, with checksums verified. Raises DamagedError."""
        return self.verified(table, self.rows(f"{table.select} {condition}", *values))

    def verified(self, table: Table, rows: Iterable[Values]) -> Iterator[Values]:
        """Verify the checksums of rows, and yield the rows without them. Raises DamagedError."""
        for row in rows:
            try:
                yield table.opened(row)
            except ChangedRowError as error:
                raise self.damaged(str(error)) from None

    def damaged(self, damage: str) -> DamagedError:
        """The error for this database."""
        return damaged(self.path, damage)


def damaged(path: Path, damage: str) -> DamagedError:
    """The error for a damaged database. damage: in the message."""
    return DamagedError(
        f"{path} is damaged ({damage}); put it back from a copy, or start a new run in another --run directory"
    )


@contextmanager
def sqlite_errors(path: Path, doing: str) -> Iterator[None]:
    """Raise SQLite's errors as UserError, except those that only a defect of ours causes. doing: such as "read"."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except UnicodeDecodeError:  # Python decodes the schema
        raise damaged(path, "text that is not UTF-8") from None
    except sqlite3.Error as error:
        # Only errors that Python raises have no code: for text that is not UTF-8, for example.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise damaged(path, str(error)) from None
        if code == sqlite3.SQLITE_FULL:
            raise NoRoomError(f"cannot {doing} {path}: the disk is full; make room") from None
        why = " ".join(str(error).split())
        raise UserError(f"cannot {doing} {path}: {why}{_REMEDIES.get(code, '')}") from None


_REMEDIES = {
    sqlite3.SQLITE_READONLY: "; name a folder where you may write",
    sqlite3.SQLITE_CANTOPEN: "; name a folder where you may read and write",
    sqlite3.SQLITE_IOERR: "; check whether its disk is full or fails",
    sqlite3.SQLITE_BUSY: "; end the program that has it open for writing",
    sqlite3.SQLITE_LOCKED: "; end the program that has it open for writing",
}
