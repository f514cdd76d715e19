"""Rows of updates in files that only grow: segments `00000001.rows`, `00000002.rows`, ...

A segment is a header of 16 bytes and rows behind one another, nothing between them. Where a row lies and what its
checksum is stands in the database alone: what lies behind the last row that it names was never committed, or is left of
an older segment. For a file that is needed no more becomes the next segment, written over from its start, in a third of
the processor time that deleting it and allocating room again takes.
"""

import os
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from xxhash import xxh3_64_intdigest

from unstale.errors import UserError
from unstale.journal.disk import DamagedError, duplicate, open_file, read_all, sync_folder, trouble, write_all
from unstale.journal.rows import Place

SEGMENT_BYTES = 32 * 1024**2  # what is given back at a time; some hundred small updates, or one large one
HEADER = b"unstale rows 01\n"
_SUFFIX = ".rows"


class Writer(Protocol):
    """Puts rows into files. Until `wait` has returned their memory must stay as it is, and files open."""

    def write(self, file: int, data: memoryview, offset: int) -> None:
        """Write all of it there, by the next `wait` at the latest. Raises OSError."""
        ...

    def wait(self) -> None:
        """Return when everything is written. Raises OSError when something could not be."""
        ...

    def close(self) -> None:
        """Nothing more will be written."""
        ...


class DirectWriter:
    """A `Writer` that has written when it returns."""

    def write(self, file: int, data: memoryview, offset: int) -> None:
        write_all(file, data, offset)

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


class Segments:
    """The segments of a run. Numbers of deleted ones are not given again as long as one is left.

    What was there when it was made is not appended to until `cut` has said what of it counts. `read` may be called by
    another thread; the others belong to one. After an error of `append` everything is as before.
    """

    def __init__(
        self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES, writer: Writer | None = None
    ) -> None:
        """folder: exists. segment_bytes: a segment ends before it grows past this, if it holds a row already. writer:
        None for one that writes at once."""
        self._folder = folder
        self._writer = DirectWriter() if writer is None else writer
        self._segment_bytes = segment_bytes
        self._sizes = _existing(folder)
        self._spares: list[Path] = []  # files that are no segment any more
        self._current: int | None = None  # the number of the segment that is written
        self._file = -1
        self._is_synced = True
        self._full: list[int] = []  # files of segments that are full and not synced
        self._is_new_in_folder = False
        self._background: ThreadPoolExecutor | None = None
        self._syncing: Future[None] | None = None

    def append(self, data: memoryview) -> Place:
        """Write a row behind the others, by the next `settle` at the latest, until when it must stay as it is. Raises
        NoRoomError or another UserError when it cannot be written."""
        self._raise_if_sync_failed()
        data = data.cast("B")
        if self._current is None or self._has_no_room_for(len(data)):
            self._begin()
        assert self._current is not None
        number, offset = self._current, self._sizes[self._current]
        self._is_synced = False
        try:
            self._writer.write(self._file, data, offset)
        except OSError as error:
            with suppress(OSError):  # gives room back; what stays counts for nothing and is written over
                os.ftruncate(self._file, offset)
            raise trouble("write", self.path(number), error) from None
        self._sizes[number] = offset + len(data)
        return Place(number, offset, len(data), checksum=xxh3_64_intdigest(data))

    def settle(self) -> None:
        """Return when all that was appended is written. Raises NoRoomError or another UserError when it cannot be: what
        was appended since the last time counts for nothing then."""
        try:
            self._writer.wait()
        except OSError as error:
            raise trouble("write", self._folder, error) from None

    def read(self, place: Place, into: memoryview) -> None:
        """Fill `into`, of the row's size, with a row. Raises DamagedError when it is not what was appended."""
        into = into.cast("B")
        assert len(into) == place.size_bytes, (len(into), place.size_bytes)
        path = self.path(place.segment)
        header = bytearray(len(HEADER))
        try:
            file = open_file(path, os.O_RDONLY)
            try:
                read_all(file, memoryview(header), 0)
                filled = read_all(file, into, place.offset)
            finally:
                os.close(file)
        except FileNotFoundError:
            raise _damaged(path, "is missing", "that it is there") from None
        except OSError as error:
            raise trouble("read", path, error) from None
        _check_header(path, header)
        if filled < place.size_bytes:
            end = place.offset + place.size_bytes
            raise _damaged(path, f"ends at byte {place.offset + filled}", f"at least {end} bytes")
        checksum = xxh3_64_intdigest(into)
        if checksum != place.checksum:
            where = f"is damaged between byte {place.offset} and {place.offset + place.size_bytes}"
            raise _damaged(path, f"{where} (checksum {checksum:016x})", f"{place.checksum:016x}")

    def sync(self) -> None:
        """Make durable all that was appended."""
        self.settle()
        self.wait_for_sync()
        _sync(self._unsynced(), self._new_in())

    def sync_soon(self, then: Path | None = None) -> bool:
        """The same in the background, for what is settled, and after it another file, which names what the segments
        hold. Whether it begins: then the one before has ended.

        An error there is raised by the next `append`, `sync` or `sync_soon`. While one is under way nothing new begins:
        what was written since is left to the next call.
        """
        self._raise_if_sync_failed()
        if self._syncing is None:
            if self._background is None:
                self._background = ThreadPoolExecutor(1, thread_name_prefix="segments")
            self._syncing = self._background.submit(_sync, self._unsynced(), self._new_in(), then)
            return True
        return False

    def cut(self, end: Mapping[int, int]) -> None:
        """Forget what was never committed. end: by segment, where its last committed row ends; others are deleted.

        Appending goes on behind the last of them. Raises DamagedError for a committed row that is not there.
        """
        assert self._current is None, "rows were appended already"
        for number, end_bytes in end.items():
            if number not in self._sizes:
                raise _damaged(self.path(number), "is missing", "that it is there")
            if self._sizes[number] < end_bytes:
                found = self._sizes[number]
                raise _damaged(self.path(number), f"ends at byte {found}", f"at least {end_bytes} bytes")
        self.retire(self.others(end))
        self.delete_spares()
        for number, end_bytes in end.items():
            path = self.path(number)
            try:
                if self._sizes[number] > end_bytes:
                    _truncate(path, end_bytes)
            except OSError as error:
                raise trouble("cut", path, error) from None
            self._sizes[number] = end_bytes
        if end:
            self._go_on(max(end))

    def above(self, end: Mapping[int, int]) -> list[Path]:
        """Files of segments with rows that have higher numbers than any that is named. end: as of `cut`."""
        last = max(end, default=0)
        return [
            self.path(number) for number in sorted(self._sizes) if number > last and self._has_rows(number)
        ]

    def beyond(self, end: Mapping[int, int]) -> list[Path]:
        """Files with bytes behind the last row that is named. end: as of `cut`."""
        last = max(end, default=0)
        longer = [self.path(last)] if end and self._sizes.get(last, 0) > end[last] else []
        return [*longer, *self.above(end)]

    def _has_rows(self, number: int) -> bool:
        return self._sizes[number] > len(HEADER)

    @property
    def paths(self) -> list[Path]:
        """Files of all segments, in order."""
        return [self.path(number) for number in sorted(self._sizes)]

    def others(self, numbers: Collection[int]) -> set[int]:
        """The segments that there are beside these, without the one that is written."""
        return self._sizes.keys() - set(numbers) - {self._current}

    def retire(self, numbers: Collection[int]) -> None:
        """These segments, as far as they are there, are none any more: the next ones are written over them."""
        for number in sorted(numbers & self._sizes.keys()):
            del self._sizes[number]
            self._spares.append(self.path(number))

    def delete_spares(self) -> None:
        """Give back the room of segments that were retired and not written over yet."""
        while self._spares:
            path = self._spares[-1]
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise trouble("delete", path, error) from None
            self._spares.pop()

    def close(self) -> None:
        """Make durable all that was appended, and end. Raises UserError when it cannot be."""
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

    def _has_no_room_for(self, size_bytes: int) -> bool:
        assert self._current is not None
        size = self._sizes[self._current]
        return size > len(HEADER) and size + size_bytes > self._segment_bytes

    def _begin(self) -> None:
        """Start the next segment."""
        number = max(self._sizes, default=0) + 1
        path = self.path(number)
        file = -1
        fresh = 0 if self._spares else os.O_CREAT | os.O_EXCL
        try:
            if self._spares:
                self._spares.pop(0).rename(path)
            file = open_file(path, os.O_RDWR | os.O_CLOEXEC | fresh, 0o600)
            write_all(file, memoryview(HEADER), 0)
        except OSError as error:
            if file >= 0:
                os.close(file)
            if file >= 0 or not fresh:  # it is ours
                path.unlink(missing_ok=True)
            raise trouble("write", path, error) from None
        if self._file >= 0:
            self._full.append(self._file)
        self._file, self._current, self._is_new_in_folder = file, number, True
        self._sizes[number] = len(HEADER)

    def _go_on(self, number: int) -> None:
        """Append to a segment that is there."""
        path = self.path(number)
        header = bytearray(len(HEADER))
        try:
            self._file = open_file(path, os.O_RDWR | os.O_CLOEXEC)
            read_all(self._file, memoryview(header), 0)
        except OSError as error:
            raise trouble("open", path, error) from None
        self._current = number
        _check_header(path, header)

    def _unsynced(self) -> dict[int, Path]:
        """Files to be synced and closed: their own, so that segments may be closed meanwhile."""
        files = dict.fromkeys(self._full, self._folder)
        self._full = []
        if not self._is_synced:
            assert self._current is not None
            files[duplicate(self._file)] = self.path(self._current)
            self._is_synced = True
        return files

    def _new_in(self) -> Path | None:
        """The folder, when its list of files is to be synced."""
        was, self._is_new_in_folder = self._is_new_in_folder, False
        return self._folder if was else None

    def wait_for_sync(self) -> None:
        """Return when no sync is under way in the background. Raises UserError where it failed."""
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            syncing.result()

    def _raise_if_sync_failed(self) -> None:
        if self._syncing is not None and self._syncing.done():
            self.wait_for_sync()


def _existing(folder: Path) -> dict[int, int]:
    """Number -> size in bytes of every segment of a folder."""
    try:
        return {
            int(path.stem): path.stat().st_size
            for path in sorted(folder.glob(f"*{_SUFFIX}"))
            if path.stem.isdecimal()
        }
    except OSError as error:
        raise trouble("read", folder, error) from None


def _check_header(path: Path, header: bytearray) -> None:
    if header != HEADER:
        raise _damaged(path, f"begins with {bytes(header)!r}", repr(HEADER))


def _damaged(path: Path, what: str, expected: str) -> DamagedError:
    return DamagedError(
        f"{path} {what}, expected {expected}; put the file back from a copy, or start anew in another --run directory"
    )


def _sync(files: Mapping[int, Path], new_in: Path | None, then: Path | None = None) -> None:
    """Sync and close files, then sync the folder `new_in`, then another file. Raises UserError where it fails."""
    failed: UserError | None = None
    for file, path in files.items():
        try:
            os.fdatasync(file)
        except OSError as error:
            failed = failed or trouble("sync", path, error)
        finally:
            os.close(file)
    if failed is not None:
        raise failed
    if new_in is not None:
        try:
            sync_folder(new_in)
        except OSError as error:
            raise trouble("sync", new_in, error) from None
    if then is not None:
        _sync({_opened(then): then}, None)


def _truncate(path: Path, size_bytes: int) -> None:
    file = open_file(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(file, size_bytes)
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    try:
        return open_file(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise trouble("sync", path, error) from None
