"""Norms of the vectors of an update, and the check that they can be aggregated, in one pass over the row.

Uses NumPy: with cold caches one call of torch takes five times as long as the norm of 62,500 numbers.
"""

import math
from typing import NamedTuple

import numpy as np

from unstale.learner.updates import Vector
from unstale.training.local import Kind

_BLOCK = 8192  # numbers; of up to 10,000 OpenBLAS computes a dot product without starting threads
_WIDE_BLOCK = 65_536  # numbers; as float64 half a MiB, which stays in the cache
_SQUARE_MAX = float(np.finfo(np.float32).max)
_SAFE_SQUARES = (1e-20, _SQUARE_MAX / 2)  # between these float32 neither underflows nor overflows


class Layout(NamedTuple):
    """Lengths of the parts of a row, in order; 0 for a part that the run does not have."""

    dimension: int  # of the update
    buffers: int = 0
    extra: int = 0


class Norms(NamedTuple):
    """L2 norms of the parts of a row. A delta is divided by the learning rate before it becomes a row."""

    update: float
    buffers: float | None = None  # None where the run has no buffers
    extra: float | None = None  # None where the policy has no second vector


def norms(row_D: Vector, layout: Layout) -> Norms:
    """The norms of the parts of a row [D] float32; NaN or infinite where the numbers are."""
    if len(row_D) == layout.dimension:  # the common case, without slices
        return Norms(norm(row_D))
    after_update, after_buffers = layout.dimension, layout.dimension + layout.buffers
    return Norms(
        norm(row_D[:after_update]),
        norm(row_D[after_update:after_buffers]) if layout.buffers else None,
        norm(row_D[after_buffers:]) if layout.extra else None,
    )


def defect(measured: Norms, kind: Kind, *, zero_deltas: bool = False) -> str | None:
    """The rejection reason of the wire contract for these norms; None for a valid update.

    `non-finite`: a NaN, an infinity, or a norm whose square exceeds float32 (over 1.8e19), so that sums and products of
    valid rows stay finite. `zero-update`: a delta of zeros only, unless zero_deltas; a gradient may be zero.
    Source: docs/decisions/0017-zero-and-huge-updates-are-refused.md
    """
    if measured.update == 0 and kind == "delta" and not zero_deltas:
        return "zero-update"
    if any(one is not None and not one * one < _SQUARE_MAX for one in measured):
        return "non-finite"
    return None


def norm(vector_d: Vector) -> float:
    """The L2 norm of [d] float32: float32 within blocks, float64 across them.

    Squares that float32 may lose or cannot hold are computed again in float64.
    """
    square = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, len(vector_d), _BLOCK):
            block_b = vector_d[start : start + _BLOCK]
            square += float(np.dot(block_b, block_b))
    low, high = _SAFE_SQUARES
    return math.sqrt(square if low < square < high else _exact_square(vector_d))


def _exact_square(vector_d: Vector) -> float:
    square = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, len(vector_d), _WIDE_BLOCK):
            wide_b = vector_d[start : start + _WIDE_BLOCK].astype(np.float64)
            square += float(np.einsum("i,i", wide_b, wide_b))  # `dot` starts threads at this size
    return square
