"""Vectors of float32 as NumPy arrays: the numbers of payloads and of stored states."""

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

Vector: TypeAlias = "np.ndarray[tuple[int], np.dtype[Any]]"
FLOAT = np.dtype("<f4")


def to_bytes(vector_d: Vector) -> memoryview:
    """The little-endian bytes of a vector, as a view where that is possible. vector_d: [d] float32, contiguous."""
    return vector_d.astype(FLOAT, copy=False).data.cast("B")


def from_bytes(frames: Iterable[memoryview | bytes], dimension: int) -> Vector:
    """A new vector [d] float32 from the frames of a payload, in order, whose sizes must add up to 4 d bytes."""
    vector_d: Vector = np.empty(dimension, FLOAT)
    fill(vector_d.data.cast("B"), frames)
    return vector_d


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
