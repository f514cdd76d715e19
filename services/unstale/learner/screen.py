"""Whether a vector holds something that can be aggregated: one fast pass over it, and one more for its norm."""

import math

import torch
from torch import Tensor

_BLOCK = 65_536  # numbers; as float64 half a MiB, which stays in the cache


def defect(vector_d: Tensor) -> str | None:
    """What is wrong with an update, as a reason of the wire contract; None when nothing is.

    `"non-finite"`: a NaN, an infinity, or a norm whose square float32 cannot hold (over 1.8e19), so that sums and
    products of rows that pass stay finite. `"zero-update"`: nothing but zeros, which has no direction.
    vector_d: [d] float32, any device, not written to.
    """
    # The square of the norm is one read of the vector where `isfinite` makes copies. A NaN or an infinity never leaves
    # it again. It is also 0 for numbers so small that their squares vanish, so then the exact look decides.
    square = float(torch.dot(vector_d, vector_d))
    if not math.isfinite(square):
        return "non-finite"
    return "zero-update" if square == 0 and not bool(vector_d.any()) else None


def row_defect(row_D: Tensor, dimension: int, norm_max: float | None = None) -> str | None:
    """As `defect`, of a row whose first d numbers are the update; what comes behind may be zeros.

    norm_max: L2 norm above which the update is `"norm-too-large"`; None for any norm.
    """
    behind, vector_d = None, row_D
    if row_D.numel() > dimension:
        behind, vector_d = defect(row_D[dimension:]), row_D[:dimension]
    found = defect(vector_d) or ("non-finite" if behind == "non-finite" else None)
    if found is None and norm_max is not None and norm(vector_d) > norm_max:
        return "norm-too-large"
    return found


def norm(vector_d: Tensor) -> float:
    """L2 norm, accumulated in float64: in float32 a bound would hold to a few digits only for millions of numbers.

    vector_d: [d] float32. Block by block: five times as fast as `torch.linalg.vector_norm` with that dtype, which
    makes a copy of it all.
    """
    square = 0.0
    for start in range(0, len(vector_d), _BLOCK):
        wide_b = vector_d[start : start + _BLOCK].double()
        square += float(torch.dot(wide_b, wide_b))
    return math.sqrt(square)
