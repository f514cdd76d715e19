"""Rows of updates in append-only files: segments `00000001.rows`, `00000002.rows`, ...

A segment is a header of 16 bytes and contiguous rows. Only the database holds their places and checksums; bytes after
the last row that it names were not committed, or belong to an older segment: an unneeded file is overwritten
as the next segment, which takes a third of the processor time of a new file.
"""

import mmap
import os
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

from xxhash import xxh3_64_intdigest

from unstale.errors import UserError
from unstale.journal.disk import read_all
from unstale.journal.rows import Location
from unstale_client.disk import DamagedError, duplicate, open_file, opened, sync_folder, trouble, user_errors, write_all

SEGMENT_BYTES = 32 * 1024**2  # space that is reused at a time; some hundred small updates, or one large one
HEADER = b"unstale rows 01\n"
_SUFFIX = ".rows"


class Writer(Protocol):
    """Writes rows to files. Until `wait` returns, their memory must not change and files must stay open."""

    def write(self, file: int, data: memoryview, offset: int) -> None:
        """Write all data at an offset, at the latest in the next `wait`. Raises OSError."""
        ...

    def wait(self) -> None:
        """Return when all is written. Raises OSError."""
        ...

    def close(self) -> None:
        """Stop writing."""
        ...


class DirectWriter:
    """A `Writer` that writes immediately."""

    def write(self, file: int, data: memoryview, offset: int) -> None:
        write_all(file, data, offset)

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


class Segments:
    """The segments of a run.

    Existing segments are extended only after `cut`. `read` may be called by any thread, the others by one. An error of
    `append` changes nothing.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES, writer: Writer | None = None) -> None:
        """segment_bytes: maximum size of a segment with more than one row. writer: `DirectWriter` if None."""
        self._folder = folder
        self._writer = DirectWriter() if writer is None else writer
        self._segment_bytes = segment_bytes
        with user_errors("read", folder):
            files = [path for path in sorted(folder.glob(f"*{_SUFFIX}")) if path.stem.isdecimal()]
            self._sizes = {int(path.stem): path.stat().st_size for path in files}  # in bytes, by number
        self._spares: list[Path] = []  # files to overwrite as next segments
        self._current: int | None = None  # number of the segment that is written
        self._file = -1
        self._filled: mmap.mmap | None = None  # row that `fill` wrote last, and `append` has not taken
        self._is_synced = True
        self._full: list[int] = []  # open files of full segments that are not synced
        self._is_new_in_folder = False
        self._background: ThreadPoolExecutor | None = None
        self._syncing: Future[None] | None = None

    def append(self, data: memoryview) -> Location:
        """Write a row, whose memory must not change until the next `settle`. One of `fill` is not written again.

        Raises UserError, NoRoomError.
        """
        self._raise_if_sync_failed()
        is_filled = self._filled is not None and data.obj is self._filled
        self._filled = None
        data = data.cast("B")
        number = self._segment_for(len(data))
        offset = self._sizes[number]
        self._is_synced = False
        if not is_filled:
            try:
                self._writer.write(self._file, data, offset)
            except OSError as error:
                raise self._cut_off(number, error) from None
        self._sizes[number] = offset + len(data)
        return Location(number, offset, len(data), checksum=xxh3_64_intdigest(data))

    def fill(self, pieces: Iterable[memoryview], size_bytes: int) -> memoryview:
        """Write a row in pieces, each valid until the next one, where the next `append` puts it; returns it mapped.

        The row counts once it is appended. Raises UserError, NoRoomError, and errors of `pieces`.
        """
        self._raise_if_sync_failed()
        number = self._segment_for(size_bytes)
        offset = end = self._sizes[number]
        try:
            for piece in pieces:
                write_all(self._file, piece, end)
                end += len(piece)
            assert end == offset + size_bytes, f"the pieces of a row are {end - offset} bytes, expected {size_bytes}"
            self._filled = mmap.mmap(self._file, end, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise self._cut_off(number, error) from None
        return memoryview(self._filled)[offset:end]

    def _segment_for(self, size_bytes: int) -> int:
        """Number of the segment that the next row belongs to, which becomes the one that is written."""
        number = self._current
        if number is None or (
            self._sizes[number] > len(HEADER) and self._sizes[number] + size_bytes > self._segment_bytes
        ):
            number = self._begin()
        return number

    def _cut_off(self, number: int, error: OSError) -> UserError:
        """Free the space of a row that could not be written; returns the error for it."""
        with suppress(OSError):  # bytes that stay are overwritten
            os.ftruncate(self._file, self._sizes[number])
        return trouble("write", self.path(number), error)

    def settle(self) -> None:
        """Return when all appended rows are written. On a UserError, rows since the last call are lost."""
        with user_errors("write", self._folder):
            self._writer.wait()

    def read(self, location: Location, into: memoryview) -> None:
        """Read a row into a buffer of its size. Raises DamagedError."""
        into = into.cast("B")
        assert len(into) == location.size_bytes, (len(into), location.size_bytes)
        path = self.path(location.segment)
        with user_errors("read", path):
            try:
                with opened(path, os.O_RDONLY) as file:
                    _check_header(file, path)
                    filled = read_all(file, into, location.offset)
            except FileNotFoundError:
                raise _damaged(path, "is missing", "that it exists") from None
        if filled < location.size_bytes:
            end = location.offset + location.size_bytes
            raise _damaged(path, f"ends at byte {location.offset + filled}", f"at least {end} bytes")
        checksum = xxh3_64_intdigest(into)
        if checksum != location.checksum:
            damage = f"is damaged between byte {location.offset} and {location.offset + location.size_bytes}"
            raise _damaged(path, f"{damage} (checksum {checksum:016x})", f"{location.checksum:016x}")

    def check(self, location: Location) -> None:
        """Read a row, and drop it. Raises DamagedError."""
        self.read(location, memoryview(bytearray(location.size_bytes)))

    def sync(self) -> None:
        """Make all appended rows durable."""
        self.settle()
        self.wait_for_sync()
        _sync(*self._unsynced())

    def sync_soon(self, then: Path) -> None:
        """Sync settled rows in the background, and then another file, which names them; not while a sync is under way.

        The next `append`, `sync` or `sync_soon` raises an error of it.
        """
        self._raise_if_sync_failed()
        if self._syncing is None:
            if self._background is None:
                self._background = ThreadPoolExecutor(1, thread_name_prefix="segments")
            self._syncing = self._background.submit(_sync, *self._unsynced(), then)

    def cut(self, end: Mapping[int, int]) -> None:
        """Remove rows that were not committed, and append after the last committed row. Raises DamagedError.

        end: Offset where the last committed row of a segment ends, by its number; other segments are deleted.
        """
        assert self._current is None, "rows were appended already"
        for number, end_bytes in end.items():
            size_bytes = self._sizes.get(number)
            if size_bytes is None:
                raise _damaged(self.path(number), "is missing", "that it exists")
            if size_bytes < end_bytes:
                raise _damaged(self.path(number), f"ends at byte {size_bytes}", f"at least {end_bytes} bytes")
        self.retire(self.others(end))
        self.delete_spares()
        for number, end_bytes in end.items():
            path = self.path(number)
            if self._sizes[number] > end_bytes:
                with user_errors("cut", path), open(path, "r+b", opener=open_file) as file:
                    file.truncate(end_bytes)
            self._sizes[number] = end_bytes
        if end:
            path = self.path(max(end))
            with user_errors("open", path):
                self._file = open_file(path, os.O_RDWR)
                self._current = max(end)
                _check_header(self._file, path)

    def above(self, end: Mapping[int, int]) -> list[Path]:
        """Files with rows of segments after the last in `end` (see `cut`)."""
        last = max(end, default=0)
        return [
            self.path(number) for number in sorted(self._sizes) if number > last and self._sizes[number] > len(HEADER)
        ]

    def beyond(self, end: Mapping[int, int]) -> list[Path]:
        """Files with bytes after the last row in `end` (see `cut`)."""
        last = max(end, default=0)
        longer = [self.path(last)] if end and self._sizes.get(last, 0) > end[last] else []
        return [*longer, *self.above(end)]

    @property
    def paths(self) -> list[Path]:
        """Files of all segments, in order."""
        return [self.path(number) for number in sorted(self._sizes)]

    def others(self, numbers: Collection[int]) -> set[int]:
        """Numbers of the other segments, without the one that is written."""
        return self._sizes.keys() - set(numbers) - {self._current}

    def retire(self, numbers: Collection[int]) -> None:
        """Remove segments; the next ones overwrite their files."""
        for number in sorted(numbers & self._sizes.keys()):
            del self._sizes[number]
            self._spares.append(self.path(number))

    def delete_spares(self) -> None:
        """Delete files of retired segments that are not overwritten yet."""
        while self._spares:
            path = self._spares[-1]
            with user_errors("delete", path):
                path.unlink(missing_ok=True)
            self._spares.pop()

    def close(self) -> None:
        """Make all appended rows durable and close the files."""
        try:
            self.sync()
            self.delete_spares()
        finally:
            if self._background is not None:
                self._background.shutdown()
            self._writer.close()
            if self._file >= 0:
                os.close(self._file)
            self._file, self._current = -1, None

    def path(self, number: int) -> Path:
        """The file of a segment."""
        return self._folder / f"{number:08d}{_SUFFIX}"

    def _begin(self) -> int:
        """Start the next segment; returns its number."""
        number = max(self._sizes, default=0) + 1
        path = self.path(number)
        file = -1
        fresh = 0 if self._spares else os.O_CREAT | os.O_EXCL
        try:
            if self._spares:
                self._spares.pop(0).rename(path)
            file = open_file(path, os.O_RDWR | fresh, 0o600)
            write_all(file, memoryview(HEADER), 0)
        except OSError as error:
            if file >= 0:
                os.close(file)
            if file >= 0 or not fresh:  # this call created or renamed it
                path.unlink(missing_ok=True)
            raise trouble("write", path, error) from None
        if self._file >= 0:
            self._full.append(self._file)
        self._file, self._current, self._is_new_in_folder = file, number, True
        self._sizes[number] = len(HEADER)
        return number

    def _unsynced(self) -> tuple[dict[int, Path], Path | None]:
        """Descriptors to sync and close, and the folder if its list of files is to be synced.

        The descriptor of the current segment is a duplicate, so that it may be closed meanwhile.
        """
        files = dict.fromkeys(self._full, self._folder)
        self._full = []
        if not self._is_synced:
            assert self._current is not None
            files[duplicate(self._file)] = self.path(self._current)
            self._is_synced = True
        is_new, self._is_new_in_folder = self._is_new_in_folder, False
        return files, self._folder if is_new else None

    def wait_for_sync(self) -> None:
        """Wait for the sync in the background. Raises UserError where it failed."""
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            syncing.result()

    def _raise_if_sync_failed(self) -> None:
        if self._syncing is not None and self._syncing.done():
            self.wait_for_sync()


def _check_header(file: int, path: Path) -> None:
    header = bytearray(len(HEADER))
    read_all(file, memoryview(header), 0)
    if header != HEADER:
        raise _damaged(path, f"begins with {bytes(header)!r}", repr(HEADER))


def _damaged(path: Path, damage: str, expected: str) -> DamagedError:
    return DamagedError(
        f"{path} {damage}, expected {expected}; put the file back from a copy, or start a new run in another --run "
        "directory"
    )


def _sync(files: Mapping[int, Path], new_in: Path | None, then: Path | None = None) -> None:
    """Sync and close files, then sync the folder `new_in`, then another file."""
    with ExitStack() as stack:
        for file in files:
            stack.callback(os.close, file)
        for file, path in files.items():
            with user_errors("sync", path):
                os.fdatasync(file)
    if new_in is not None:
        with user_errors("sync", new_in):
            sync_folder(new_in)
    if then is not None:
        with user_errors("sync", then), opened(then, os.O_RDONLY) as file:
            os.fdatasync(file)
