"""`results.db`: results and failures of jobs. One process writes, any number read concurrently."""

import os
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from unstale.errors import UserError
from unstale_client.disk import locked, trouble
from unstale_papers.jobs import Job
from unstale_papers.record import Record

DATABASE = "results.db"
LOCK = "lock"
FORMAT = 1
APPLICATION = 0x756E7265  # "unre", which identifies our databases

_SCHEMA = """
CREATE TABLE results (
  digest TEXT PRIMARY KEY,       -- SHA-256 of the configuration, hex
  configuration TEXT NOT NULL,   -- JSON: all that can move a bit of the record
  name TEXT NOT NULL,            -- of the preset and cell that it was computed for first
  record BLOB NOT NULL,          -- JSON, compressed by zlib
  seconds REAL NOT NULL,         -- that the job took
  finished TEXT NOT NULL,        -- UTC
  machine TEXT NOT NULL,
  versions TEXT NOT NULL
) STRICT;

CREATE TABLE failures (
  digest TEXT PRIMARY KEY,
  configuration TEXT NOT NULL,
  name TEXT NOT NULL,
  traceback TEXT NOT NULL,       -- of the last time; a sentence for what the user can mend
  times INTEGER NOT NULL,
  last TEXT NOT NULL             -- UTC
) STRICT;
"""
_NOW = "strftime('%Y-%m-%dT%H:%M:%SZ', 'now')"
_KEEP = f"INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, coalesce(?, {_NOW}), ?, ?)"  # noqa: S608  (no external text)
_WHOLE = "SELECT configuration, name, finished, record, seconds, machine, versions FROM results WHERE digest = ?"
_FAIL = (
    f"INSERT INTO failures VALUES (?, ?, ?, ?, 1, {_NOW}) ON CONFLICT (digest) DO UPDATE "  # noqa: S608
    "SET traceback = excluded.traceback, times = times + 1, last = excluded.last, name = excluded.name"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a job. record: JSON. seconds: its duration. machine, versions: descriptions of its environment."""

    record: str
    seconds: float
    machine: str
    versions: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """A stored result. name: as `Job.name`, of the first job that computed it. finished: UTC."""

    digest: str
    configuration: str
    name: str
    finished: str
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed job. name: as `Job.name`. times: number of failures. last: UTC."""

    name: str
    traceback: str
    times: int
    last: str


class Store:
    """Results by the digest of their job, for one thread at a time; a context manager that closes it.

    Raises UserError, one sentence that names the file, for errors of the disk and of SQLite.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: int | None) -> None:
        """Use `open` or `look`."""
        self._connection = connection
        self._path = path
        self._lock = lock

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Create or open it, with a lock against other writers until it is closed."""
        path = folder / DATABASE
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock = _locked(folder)
            except OSError as error:
                raise trouble("open the store", folder, error) from None
            stack.callback(os.close, lock)
            with _reported("open", path):
                connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
                stack.callback(connection.close)
                _prepare(connection, path)
            stack.pop_all()
        return cls(connection, path, lock)

    @classmethod
    def look(cls, folder: Path) -> Self | None:
        """Open it only for reading, also while another process writes; None without a store."""
        path = folder / DATABASE
        if not path.exists():
            return None
        with ExitStack() as stack, _reported("open", path):
            connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            stack.callback(connection.close)
            if _is_new(connection):  # left by an engine that was killed at its start
                return None
            _check(connection, path)
            stack.pop_all()
        return cls(connection, path, None)

    def close(self) -> None:
        """Close it and release the lock."""
        self._connection.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def keep(self, job: Job, result: Result) -> None:
        """Store a job's result durably and delete its failures."""
        with self._transaction():
            self._keep(job.digest, job.configuration, job.name, result, None)

    def take(self, every: Iterable[StoredResult]) -> None:
        """Import results, all or none."""
        with self._transaction():
            for one in every:
                self._keep(one.digest, one.configuration, one.name, one.result, one.finished)

    def fail(self, job: Job, traceback: str) -> None:
        """Count a job's failure."""
        with self._transaction():
            self._connection.execute(_FAIL, (job.digest, job.configuration, job.name, traceback))

    def has(self, digest: str) -> bool:
        """Whether that job is done."""
        return bool(self._rows("SELECT 1 FROM results WHERE digest = ?", digest))

    def records(self, jobs: Iterable[Job]) -> dict[tuple[str, int], Record]:
        """Records of the completed jobs, by cell and seed."""
        found = {}
        for job in jobs:
            for (packed,) in self._rows("SELECT record FROM results WHERE digest = ?", job.digest):
                found[job.cell, job.seed] = self._unpacked(packed)
        return found

    def failures(self, jobs: Iterable[Job]) -> dict[tuple[str, int], Failure]:
        """Failures of jobs that are not completed, by cell and seed."""
        query = "SELECT name, traceback, times, last FROM failures WHERE digest = ?"
        return {
            (job.cell, job.seed): Failure(name=name, traceback=traceback, times=times, last=last)
            for job in jobs
            for name, traceback, times, last in self._rows(query, job.digest)
        }

    def origins(self, jobs: Iterable[Job]) -> Counter[str]:
        """Numbers of completed jobs by machine and versions."""
        query = "SELECT machine, versions FROM results WHERE digest = ?"
        return Counter(f"{machine}; {versions}" for job in jobs for machine, versions in self._rows(query, job.digest))

    def everything(self) -> Iterator[StoredResult]:
        """Every result, in the order of names and then of digests."""
        for (digest,) in self._rows("SELECT digest FROM results ORDER BY name, digest"):
            (row,) = self._rows(_WHOLE, digest)
            configuration, name, finished, packed, seconds, machine, versions = row
            yield StoredResult(
                digest=digest,
                configuration=configuration,
                name=name,
                finished=finished,
                result=Result(
                    record=self._unpacked(packed).to_json(), seconds=seconds, machine=machine, versions=versions
                ),
            )

    def seconds(self) -> list[tuple[str, float]]:
        """Configuration and seconds of every completed job."""
        return self._rows("SELECT configuration, seconds FROM results")

    def _keep(self, digest: str, configuration: str, name: str, result: Result, finished: str | None) -> None:
        """finished: UTC, None for now."""
        packed = zlib.compress(result.record.encode())
        row = (digest, configuration, name, packed, result.seconds, finished, result.machine, result.versions)
        self._connection.execute(_KEEP, row)
        self._connection.execute("DELETE FROM failures WHERE digest = ?", (digest,))

    def _unpacked(self, packed: bytes) -> Record:
        try:
            return Record.from_json(zlib.decompress(packed).decode())
        except (zlib.error, ValueError, TypeError):
            raise _damaged(self._path, "a record is not what was stored") from None

    def _rows(self, query: str, *values: str) -> list[Any]:
        with _reported("read", self._path):
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _reported("write", self._path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite ends it itself on some errors
                    self._connection.execute("ROLLBACK")
                raise


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Set WAL mode, in which readers see the last commit without blocking, and durable commits."""
    is_new = _is_new(connection)
    if not is_new:
        _check(connection, path)  # before the first change
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    if is_new:
        marks = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT};"
        connection.executescript(f"BEGIN; {marks} {_SCHEMA} COMMIT;")


def _is_new(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("PRAGMA schema_version").fetchone() == (0,))


def _check(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise UserError(f"{path} is another program's database; name another folder with --store")
    if version != FORMAT:
        raise UserError(
            f"{path} has format {version}, expected {FORMAT}, as this version of unstale has it; name another folder "
            "with --store"
        )


def _locked(folder: Path) -> int:
    return locked(
        folder / LOCK,
        f"the store {folder} is in use by another `unstale` that computes; wait for it, end it, or name another folder "
        "with --store",
    )


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} is damaged ({what}); put it back from a copy, or name another folder with --store")


@contextmanager
def _reported(doing: str, path: Path) -> Iterator[None]:
    """Raise SQLite's errors as one sentence, except programming errors."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except sqlite3.Error as error:
        why = " ".join(str(error).split())
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            raise _damaged(path, why) from None
        raise UserError(f"cannot {doing} {path}: {why}; see whether its disk is full or read-only") from None
