"""Large vectors in files, which take no memory of the process, and may become files of the outbox without a copy."""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from unstale_client.disk import write_all
from unstale_client.vectors import FLOAT, Vector, from_bytes

FILE_BYTES = 32 * 1024**2  # vectors from this size on are built in a file, if there is a folder
HEAD_BYTES = 64 * 1024  # before the vector in that file, for the head of a stored update (`atomic_file`)


class BuiltFile(mmap.mmap):
    """A file without a name, mapped, with a vector behind HEAD_BYTES. The file may be given a name, once."""

    file = -1
    """Its descriptor; -1 once it was taken."""

    def take(self) -> int:
        """The descriptor, for the caller to close."""
        file, self.file = self.file, -1
        return file

    def __del__(self) -> None:
        if self.file >= 0:
            os.close(self.file)


def built(blocks: Callable[[], Iterator[Vector]], numbers: int, folder: Path | None) -> Vector:
    """A vector [numbers] of consecutive float32 blocks, each valid until the next one. Raises errors of the blocks.

    A large one lies in a `BuiltFile` in `folder`, so that it takes no memory of the process; without a folder, or room
    there, in memory.
    """
    if folder is not None and FLOAT.itemsize * numbers >= FILE_BYTES:
        with suppress(OSError):
            return _in_a_file(blocks(), numbers, folder)
    return from_bytes((block.data.cast("B") for block in blocks()), numbers)


def _in_a_file(blocks: Iterator[Vector], numbers: int, folder: Path) -> Vector:
    file = _unnamed(folder)
    try:
        end = HEAD_BYTES
        for block in blocks:
            write_all(file, block.data.cast("B"), end)
            end += block.nbytes
        mapped = BuiltFile(file, HEAD_BYTES + FLOAT.itemsize * numbers, access=mmap.ACCESS_COPY)
        mapped.file = os.dup(file)
    finally:
        os.close(file)
    return np.frombuffer(memoryview(mapped)[HEAD_BYTES:], FLOAT)


def _unnamed(folder: Path) -> int:
    """A file without a name, which Linux can give one. Raises OSError."""
    if hasattr(os, "O_TMPFILE"):
        with suppress(OSError):  # not of every file system
            return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno())


def file_of(frames: Sequence[bytes | memoryview]) -> tuple[BuiltFile, int] | None:
    """The file of the vector with whose frames these begin, and their number; None for others, or once it was taken."""
    source = _source(frames[0]) if frames else None
    if not isinstance(source, BuiltFile) or source.file < 0:
        return None
    count = sum(_source(frame) is source for frame in frames)
    size_bytes = sum(len(frame) for frame in frames[:count])
    return (source, count) if size_bytes == len(source) - HEAD_BYTES else None


def _source(source: Any) -> Any:
    """The object in whose memory an array or a view lies."""
    while isinstance(source, memoryview | np.ndarray):
        source = source.obj if isinstance(source, memoryview) else source.base
    return source
