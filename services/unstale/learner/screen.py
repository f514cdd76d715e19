"""Whether a vector holds something that can be aggregated: one look at its extremes, and a pass more for its norm.

NumPy, where the rest of this package computes with torch: a call of torch takes five times as long as a look at 62,500
numbers, when what the processor knew of it has gone since the last update.
"""

import math

import numpy as np

from unstale.learner.updates import Vector
from unstale.training.local import Kind

_BLOCK = 65_536  # numbers; as float64 half a MiB, which stays in the cache
_SQUARE_MAX = float(np.finfo(np.float32).max)


def defect(vector_d: Vector, kind: Kind) -> str | None:
    """What is wrong with an update, as a reason of the wire contract; None when nothing is.

    `"non-finite"`: a NaN, an infinity, or a norm whose square float32 cannot hold (over 1.8e19), so that sums and
    products of rows that pass stay finite. `"zero-update"`: a delta of nothing but zeros, which no training leaves; a
    gradient may be 0. vector_d: [d] float32, not written to. Source: docs/decisions/0017.
    """
    # A NaN anywhere is what both extremes are.
    largest = max(float(np.maximum.reduce(vector_d)), -float(np.minimum.reduce(vector_d)))
    if not math.isfinite(largest):
        return "non-finite"
    if largest == 0:
        return "zero-update" if kind == "delta" else None
    if len(vector_d) * largest * largest < _SQUARE_MAX:
        return None
    return None if norm(vector_d) ** 2 < _SQUARE_MAX else "non-finite"


def row_defect(row_D: Vector, dimension: int, kind: Kind, norm_max: float | None = None) -> str | None:
    """As `defect`, of a row whose first d numbers are the update; what comes behind may be zeros.

    norm_max: L2 norm above which the update is `"norm-too-large"`; None for any norm.
    """
    behind, vector_d = None, row_D
    if len(row_D) > dimension:
        behind, vector_d = defect(row_D[dimension:], kind), row_D[:dimension]
    found = defect(vector_d, kind) or ("non-finite" if behind == "non-finite" else None)
    if found is None and norm_max is not None and norm(vector_d) > norm_max:
        return "norm-too-large"
    return found


def norm(vector_d: Vector) -> float:
    """L2 norm, accumulated in float64: in float32 a bound would hold to a few digits only for millions of numbers.

    vector_d: [d] float32. Block by block, so that no copy of it all is made.
    """
    square = 0.0
    for start in range(0, len(vector_d), _BLOCK):
        wide_b = vector_d[start : start + _BLOCK].astype(np.float64)
        square += float(np.einsum("i,i", wide_b, wide_b))  # not `dot`, which begins threads for it
    return math.sqrt(square)
