"""Payloads that come in chunks, in files: they grow as the bytes come, and outlive the process where there is a folder.

A part is not made durable: what a power failure leaves of it is found by the payload's checksum.
"""

import mmap
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import overload

from typing_extensions import override

from unstale.journal.disk import duplicate, open_file, private_folder, trouble, when_free, write_all
from unstale_proto import limits


class PartialFile:
    """One file. path: None for one without a name, which is gone with the process. Implements
    `unstale_proto.transfer.PartialFile`."""

    def __init__(self, file: int, path: Path | None) -> None:
        """Use `PartialFiles.open`."""
        self._file = file
        self._path = path
        self._have = os.fstat(file).st_size

    @property
    def have(self) -> int:
        return self._have

    def append(self, chunk: memoryview) -> None:
        try:
            write_all(self._file, chunk, self._have)
        except OSError:
            os.ftruncate(self._file, self._have)
            raise
        self._have += len(chunk)

    def mapped(self) -> memoryview:
        if not self._have:
            return memoryview(b"")
        return memoryview(mmap.mmap(self._file, self._have, access=mmap.ACCESS_READ))

    def frames(self) -> Sequence[memoryview]:
        return _Frames(duplicate(self._file), self._have)

    def clear(self) -> None:
        os.ftruncate(self._file, 0)
        self._have = 0

    def close(self) -> None:
        """Leave it for another time."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def delete(self) -> None:
        self.close()
        if self._path is not None:
            _delete(self._path)

    def __del__(self) -> None:
        self.close()


class _Frames(Sequence[memoryview]):
    """A file, cut into frames that are mapped when they are asked for: memory holds those that somebody looks at."""

    def __init__(self, file: int, size_bytes: int) -> None:
        """file: ours to close."""
        self._file = file
        self._size_bytes = size_bytes
        self._starts = range(0, size_bytes, limits.FRAME_BYTES_MAX)

    @override
    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[memoryview]: ...
    @override
    def __getitem__(self, index: int | slice) -> memoryview | Sequence[memoryview]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        start = self._starts[index]
        length = min(limits.FRAME_BYTES_MAX, self._size_bytes - start)
        return memoryview(mmap.mmap(self._file, length, access=mmap.ACCESS_READ, offset=start))

    def __del__(self) -> None:
        os.close(self._file)


class PartialFiles:
    """The parts in a folder, or without one in memory. found: names of those that were there before.

    Raises UserError when the folder cannot be had.
    """

    def __init__(self, folder: Path | None = None, *, suffix: str = ".part") -> None:
        self._folder = folder
        self._suffix = suffix
        self.found: list[str] = []
        if folder is None:
            return
        try:
            private_folder(folder)
            self.found = sorted(path.stem for path in folder.iterdir() if path.suffix == suffix)
        except OSError as error:
            raise trouble("use", folder, error) from None

    def open(self, name: str) -> PartialFile:
        """Go on with the part of this name, or begin it. Raises OSError."""
        if self._folder is None:
            return PartialFile(_unnamed(), None)
        path = self._folder / f"{name}{self._suffix}"
        return PartialFile(open_file(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), path)

    def delete(self, name: str) -> None:
        """One that nobody has opened is not needed any more."""
        if self._folder is not None:
            _delete(self._folder / f"{name}{self._suffix}")


def _delete(path: Path) -> None:
    with suppress(OSError):  # what stays is gone on with, or found by its checksum to be something else
        path.unlink()


def _unnamed() -> int:
    """A file in memory where the system has such, else one that is deleted already."""
    if hasattr(os, "memfd_create"):
        return when_free(lambda: os.memfd_create("part", os.MFD_CLOEXEC))
    file, path = tempfile.mkstemp()
    os.unlink(path)
    return file
