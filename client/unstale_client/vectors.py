"""Vectors of float32 as NumPy arrays: the numbers of payloads and of stored states."""

import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Vector: TypeAlias = "np.ndarray[tuple[int], np.dtype[Any]]"
FLOAT = np.dtype("<f4")
FILE_BYTES = 32 * 1024**2  # vectors from this size on are built in a file, if there is a folder


def to_bytes(vector_d: Vector) -> memoryview:
    """The little-endian bytes of a vector, as a view where that is possible. vector_d: [d] float32, contiguous."""
    return vector_d.astype(FLOAT, copy=False).data.cast("B")


def from_bytes(frames: Iterable[memoryview | bytes], dimension: int) -> Vector:
    """A new vector [d] float32 from the frames of a payload, in order, whose sizes must add up to 4 d bytes."""
    vector_d: Vector = np.empty(dimension, FLOAT)
    fill(vector_d.data.cast("B"), frames)
    return vector_d


def built(blocks: Callable[[], Iterator[Vector]], numbers: int, folder: Path | None) -> Vector:
    """A vector [numbers] of consecutive float32 blocks, each valid until the next one. Raises errors of the blocks.

    A large one lies in a file without a name in `folder`, so that it takes no memory of the process; in memory without
    a folder, or without room there.
    """
    if folder is not None and FLOAT.itemsize * numbers >= FILE_BYTES:
        with suppress(OSError), tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            for block in blocks():
                _write_all(file, block.data.cast("B"))
            return np.frombuffer(mmap.mmap(file.fileno(), FLOAT.itemsize * numbers, access=mmap.ACCESS_COPY), FLOAT)
    return from_bytes((block.data.cast("B") for block in blocks()), numbers)


def _write_all(file: Any, data: memoryview) -> None:
    while len(data):
        data = data[file.write(data) :]


def fill(target: memoryview, frames: Iterable[memoryview | bytes]) -> None:
    """Copy the frames of a payload to these bytes, in order; their sizes must add up to that of the target."""
    offset = 0
    for frame in frames:
        end = offset + len(frame)
        assert end <= len(target), f"payload is longer than {len(target)} bytes"
        target[offset:end] = frame
        offset = end
    assert offset == len(target), f"payload is {offset} bytes, expected {len(target)}"


def is_finite(vector_d: Vector) -> bool:
    """Whether the vector has no NaN and no infinity."""
    return bool(np.isfinite(vector_d).all())
