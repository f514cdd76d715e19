"""Norms of the vectors of an update, and whether they can be aggregated: one pass over the numbers.

NumPy, where the rest of this package computes with torch: a call of torch takes five times as long as a look at 62,500
numbers, when what the processor knew of it has gone since the last update.
"""

import math
from typing import NamedTuple

import numpy as np

from unstale.learner.updates import Vector
from unstale.training.local import Kind

_BLOCK = 8192  # numbers; of up to 10,000 OpenBLAS computes a dot product without starting threads
_WIDE_BLOCK = 65_536  # numbers; as float64 half a MiB, which stays in the cache
_SQUARE_MAX = float(np.finfo(np.float32).max)
_SURE_SQUARES = (
    1e-20,
    _SQUARE_MAX / 2,
)  # squares between these are far from what float32 loses or cannot hold


class Layout(NamedTuple):
    """The parts of a row, in order: the update, buffers, the extra vector.

    dimension, buffers, extra: numbers of each; 0 for a part that the run does not have.
    """

    dimension: int
    buffers: int = 0
    extra: int = 0


class Norms(NamedTuple):
    """L2 norms of the vectors of an update, as they lie in its row: of a delta, after division by the learning rate.

    update: of the update itself. buffers, extra: None where the run has none.
    """

    update: float
    buffers: float | None = None
    extra: float | None = None


def norms(row_D: Vector, layout: Layout) -> Norms:
    """The norms of the vectors of a row; NaN or infinite where numbers are. row_D: [D] float32, not written to."""
    if len(row_D) == layout.dimension:  # most rows; the same, faster
        return Norms(norm(row_D))
    after_update, after_buffers = layout.dimension, layout.dimension + layout.buffers
    return Norms(
        norm(row_D[:after_update]),
        norm(row_D[after_update:after_buffers]) if layout.buffers else None,
        norm(row_D[after_buffers:]) if layout.extra else None,
    )


def defect(measured: Norms, kind: Kind) -> str | None:
    """What is wrong with an update that has these norms, as a reason of the wire contract; None when nothing is.

    `"non-finite"`: a NaN, an infinity, or a norm whose square float32 cannot hold (over 1.8e19), so that sums and
    products of rows that pass stay finite. `"zero-update"`: a delta of nothing but zeros, which no training leaves; a
    gradient may be 0.
    Source: docs/decisions/0017-zero-and-huge-updates-are-refused.md
    """
    if measured.update == 0 and kind == "delta":
        return "zero-update"
    if any(one is not None and not one * one < _SQUARE_MAX for one in measured):
        return "non-finite"
    return None


def norm(vector_d: Vector) -> float:
    """L2 norm: float32 within blocks, float64 over them, so that its error does not grow with d.

    Where float32 could lose numbers or not hold their squares, all of it is computed in float64. vector_d: [d] float32.
    """
    square = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, len(vector_d), _BLOCK):
            block_b = vector_d[start : start + _BLOCK]
            square += float(np.dot(block_b, block_b))
    low, high = _SURE_SQUARES
    return math.sqrt(square if low < square < high else _exact_square(vector_d))


def _exact_square(vector_d: Vector) -> float:
    square = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, len(vector_d), _WIDE_BLOCK):
            wide_b = vector_d[start : start + _WIDE_BLOCK].astype(np.float64)
            square += float(np.einsum("i,i", wide_b, wide_b))  # not `dot`, which begins threads for it
    return square
