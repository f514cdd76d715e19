"""A disk that loses what was not synced: which bytes of a folder are durable, and which survive a power failure.

Model: the content of a file is durable as of its last sync, and the entries of a folder as of the last sync of the
folder. Of everything newer any part may have reached the disk: each page of 4 KiB is old, new or torn, and then each of
its sectors of 512 bytes is old or new; the end of a file that has grown is anywhere between the old and the new one,
and pages before it that were not written are zeros; an entry that was made, renamed or deleted since is there or not; a
time that was set since is the old or the new one. The power may fail between any two operations on the disk, so also in
the middle of a commit, and while SQLite moves its log into the database.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from unstale.seeds import Generator

PAGE = 4096
SECTOR = 512
WAL_HEADER = 32  # bytes
NOT_STORED = ("-shm",)  # SQLite's index of its log: rebuilt at every start, so its content on the disk says nothing


class PowerFailure(BaseException):
    """The machine has stopped here. No program may catch it."""


class VolatileDisk:
    """The folder `root`, whose files lie in the memory of the operating system until they are synced.

    Args:
        root: Folder; it may not exist yet. All that is in it is durable.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.syncs = 0
        self.operations_left: int | None = None  # until the power fails; None for never
        self._times: dict[int, int] = {}  # durable modification times, ns, by inode; of files that had one set
        self._content: dict[int, bytes] = {}  # durable, by inode
        self._entries: dict[str, int] = {}  # durable: path below the root -> inode
        self._held: dict[int, int] = {}  # descriptors of inodes that have lost their entry
        for path in self._files():
            self._entries[self._name(path)] = path.stat().st_ino
            self._content[path.stat().st_ino] = path.read_bytes()

    def operation(self) -> None:
        """Something is about to reach the disk, or to be deleted. Raises PowerFailure when it does not come to that."""
        if self.operations_left is not None:
            self.operations_left -= 1
            if self.operations_left < 0:
                self.operations_left = 0  # the machine stays as it is
                raise PowerFailure

    # --- syncs ---

    def sync_file(self, path: Path) -> None:
        """Make the content of a file durable."""
        self.operation()
        self.was_synced(path)

    def was_synced(self, path: Path) -> None:
        """The content of a file was durable before the last event."""
        if path.exists():
            self._content[path.stat().st_ino] = path.read_bytes()
            self.syncs += 1

    def head_was_synced(self, path: Path, size: int) -> None:
        """The first bytes of a file have been durable before the others were written."""
        if path.exists():
            inode = path.stat().st_ino
            old = self._content.get(inode, b"")
            self._content[inode] = path.read_bytes()[:size] + old[size:]

    def sync_folder(self, folder: Path) -> None:
        """Make the entries of a folder durable."""
        self.operation()
        prefix = self._name(folder)
        for name in [name for name in self._entries if os.path.dirname(name) == prefix]:
            del self._entries[name]
        for path in folder.iterdir():
            if path.is_file() and not path.name.endswith(NOT_STORED):
                self._entries[self._name(path)] = path.stat().st_ino
                self._content.setdefault(path.stat().st_ino, b"")

    def write_back(self, rng: Generator) -> None:
        """Make random pages durable, as the operating system does after a while."""
        for path in self._files():
            if rng.random() < 0.3:
                inode = path.stat().st_ino
                self._content[inode] = _mixed(self._content.get(inode, b""), path.read_bytes(), rng)
                if rng.random() < 0.5:
                    self._entries[self._name(path)] = inode

    def descriptor_synced(self, descriptor: int) -> None:
        """A file or folder was synced through a descriptor."""
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_relative_to(self.root):
            if path.is_dir():
                self.sync_folder(path)
            else:
                self.sync_file(path)

    def hold(self, path: Path) -> None:
        """An entry is about to be deleted or replaced; it may still be on the disk after a power failure."""
        if path.is_relative_to(self.root) and path.is_file():
            self.operation()
            inode = path.stat().st_ino
            if inode not in self._held:
                self._held[inode] = os.open(path, os.O_RDONLY)

    # --- the failure ---

    def fail(self, rng: Generator, into: Path) -> None:
        """Write the files that survive a power failure now to the folder `into`, which does not exist."""
        now = {self._name(path): path.stat().st_ino for path in self._files()}
        for folder in [self.root, *(path for path in self.root.rglob("*") if path.is_dir())]:
            (into / folder.relative_to(self.root)).mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in sorted(now.keys() | self._entries.keys()):
            candidates = [self._entries.get(name), now.get(name)]
            inode = candidates[int(rng.integers(2))]
            if inode is None:
                continue
            image = _mixed(self._content.get(inode, b""), self._read(name, inode), rng)
            (into / name).write_bytes(image)
            (into / name).chmod(0o600)
            if inode == now.get(name):
                time_ns = os.stat(self.root / name).st_mtime_ns
                time_ns = [self._times.get(inode, time_ns), time_ns][int(rng.integers(2))]
                os.utime(into / name, ns=(time_ns, time_ns))

    def time_set(self, path: Path) -> None:
        """The modification time of a file is about to be set, which no code syncs."""
        if path.is_relative_to(self.root):
            self._times.setdefault(path.stat().st_ino, path.stat().st_mtime_ns)

    def close(self) -> None:
        """Close the descriptors that are held."""
        while self._held:
            os.close(self._held.popitem()[1])

    def _read(self, name: str, inode: int) -> bytes:
        if inode in self._held:
            descriptor = self._held[inode]
            return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        path = self.root / name
        return path.read_bytes() if path.exists() and path.stat().st_ino == inode else self._content[inode]

    def _files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file() and not path.name.endswith(NOT_STORED))

    def _name(self, path: Path) -> str:
        name = str(path.relative_to(self.root))
        return "" if name == "." else name


def _mixed(old: bytes, new: bytes, rng: Generator) -> bytes:
    """A content that a disk may hold which held `old` and was to hold `new`."""
    if old == new:
        return new
    sizes = [len(old), len(new), int(rng.integers(min(len(old), len(new)), max(len(old), len(new)) + 1))]
    image = bytearray(sizes[int(rng.integers(3))])
    everything = rng.random()
    for start in range(0, len(image), PAGE):
        end = min(start + PAGE, len(image))
        before, after = old[start:end], new[start:end]
        draw = rng.random()
        if everything < 0.2 or draw < 0.45:  # all of it came through; a page at a time it hardly ever would
            page = after
        elif draw < 0.9:
            page = before
        else:
            page = b"".join((after, before)[int(rng.integers(2))][at : at + SECTOR] for at in range(0, PAGE, SECTOR))
        image[start : start + len(page)] = page
    return bytes(image)


class _Connection(sqlite3.Connection):
    """A connection that reports SQLite's own syncs: of its log with `synchronous = FULL` at each commit, and of log and
    database when it moves the log into the database. Source: https://sqlite.org/wal.html"""

    disk: VolatileDisk
    path: Path
    is_full = True  # SQLite's default

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql != "COMMIT":
            cursor = super().execute(sql, *parameters)
            if sql.startswith("PRAGMA synchronous = "):
                self.is_full = sql.endswith("FULL")
            elif sql.startswith("PRAGMA wal_checkpoint"):
                self.disk.was_synced(self.path)  # before the log is cut
                self._log_synced()
            return cursor
        before = self.path.read_bytes()
        self.disk.operation()
        cursor = super().execute(sql, *parameters)
        # SQLite begins the log again with another header, and syncs that before it writes over old frames.
        # Source: https://sqlite.org/src/info/ff5be73dee
        self.disk.head_was_synced(self._log, WAL_HEADER)
        if self.path.read_bytes() != before:
            self.disk.was_synced(self._log)  # before the first page of the database was written
            self._log_synced()
            self.disk.sync_file(self.path)
        elif self.is_full:
            self._log_synced()
        return cursor

    def executescript(self, sql: str) -> sqlite3.Cursor:
        cursor = super().executescript(sql)
        self._log_synced()
        return cursor

    def close(self) -> None:
        """The last connection moves the log into the database, and deletes it."""
        self.disk.was_synced(self._log)
        self.disk.hold(self._log)
        super().close()
        if self.path.exists() and not self._log.exists():
            self.disk.was_synced(self.path)

    @property
    def _log(self) -> Path:
        return self.path.with_name(f"{self.path.name}-wal")

    def _log_synced(self) -> None:
        self.disk.sync_file(self._log)
        self.disk.sync_folder(self.path.parent)  # SQLite does so when it has created the log


@contextmanager
def volatile(disk: VolatileDisk) -> Iterator[None]:
    """Run the body with all syncs, deletions and renames of this process reported to the disk."""
    connect = sqlite3.connect

    def connect_to(database: str, *given: Any, **named: Any) -> sqlite3.Connection:
        path = Path(database.removeprefix("file://").partition("?")[0])
        if not path.is_relative_to(disk.root):
            return connect(database, *given, **named)
        made = connect(database, *given, factory=_Connection, **named)
        made.disk, made.path = disk, path
        return made

    def synced(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            real(descriptor)
            disk.descriptor_synced(descriptor)

        return sync

    def deleting(real: Callable[..., None]) -> Callable[..., None]:
        def delete(path: Any, *given: Any, **named: Any) -> None:
            disk.hold(Path(path))
            real(path, *given, **named)

        return delete

    def moving(real: Callable[..., None]) -> Callable[..., None]:
        def move(source: Any, target: Any, *given: Any, **named: Any) -> None:
            disk.hold(Path(target))
            real(source, target, *given, **named)

        return move

    def timing(real: Callable[..., None]) -> Callable[..., None]:
        def set_time(path: Any, *given: Any, **named: Any) -> None:
            disk.time_set(Path(path))
            real(path, *given, **named)

        return set_time

    with (
        patch("sqlite3.connect", connect_to),
        patch("os.utime", timing(os.utime)),
        patch("os.fsync", synced(os.fsync)),
        patch("os.fdatasync", synced(os.fdatasync)),
        patch("os.unlink", deleting(os.unlink)),
        patch("os.remove", deleting(os.remove)),
        patch("os.rename", moving(os.rename)),
        patch("os.replace", moving(os.replace)),
    ):
        yield
