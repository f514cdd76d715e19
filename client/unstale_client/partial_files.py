"""Files of payloads that arrive in chunks; in a folder they survive the process.

They are not synced: the payload's checksum detects a loss.
"""

import mmap
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import overload

from typing_extensions import override

from unstale_client.disk import duplicate, open_file, private_folder, user_errors, when_free, write_all
from unstale_proto import limits


class PartialFile:
    """One file, made by `PartialFiles.open`. Implements `unstale_proto.transfer.PartialFile`."""

    def __init__(self, file: int, path: Path | None) -> None:
        """path: None for a file without a name, which does not survive the process."""
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
        return memoryview(mmap.mmap(self._file, self._have, access=mmap.ACCESS_COPY))

    def frames(self) -> Sequence[memoryview]:
        return _Frames(duplicate(self._file), self._have)

    def clear(self) -> None:
        os.ftruncate(self._file, 0)
        self._have = 0

    def close(self) -> None:
        """Close the file and keep it."""
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
    """A file as a sequence of frames, each mapped into memory on access."""

    def __init__(self, file: int, size_bytes: int) -> None:
        """file: closed by this object."""
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
            return [self[number] for number in range(len(self))[index]]
        start = self._starts[index]
        length = min(limits.FRAME_BYTES_MAX, self._size_bytes - start)
        return memoryview(mmap.mmap(self._file, length, access=mmap.ACCESS_READ, offset=start))

    def __del__(self) -> None:
        os.close(self._file)


class PartialFiles:
    """Partial files in a folder, or in memory without one."""

    def __init__(self, folder: Path | None = None, *, suffix: str = ".part") -> None:
        self._folder = folder
        self._suffix = suffix
        self.names: list[str] = []  # of files that existed before
        if folder is None:
            return
        with user_errors("use", folder):
            private_folder(folder)
            self.names = sorted(path.stem for path in folder.iterdir() if path.suffix == suffix)

    def open(self, name: str) -> PartialFile:
        """Open the file of this name, or create it. Raises OSError."""
        if self._folder is None:
            return PartialFile(_unnamed(), None)
        path = self._folder / f"{name}{self._suffix}"
        return PartialFile(open_file(path, os.O_RDWR | os.O_CREAT, 0o600), path)

    def delete(self, name: str) -> None:
        """Delete a file that is not open."""
        if self._folder is not None:
            _delete(self._folder / f"{name}{self._suffix}")


def _delete(path: Path) -> None:
    with suppress(OSError):  # a file that stays is resumed, or its checksum does not match
        path.unlink()


def _unnamed() -> int:
    """A file in memory where the system supports it, else a deleted temporary file."""
    if hasattr(os, "memfd_create"):
        return when_free(lambda: os.memfd_create("part", os.MFD_CLOEXEC))
    file, path = tempfile.mkstemp()
    os.unlink(path)
    return file
