"""Whether a vector holds something that can be aggregated: one fast pass over it."""

import math

import torch
from torch import Tensor


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


def row_defect(row_D: Tensor, dimension: int) -> str | None:
    """As `defect`, of a row whose first d numbers are the update; what comes behind may be zeros."""
    if row_D.numel() == dimension:
        return defect(row_D)
    behind = defect(row_D[dimension:])
    return defect(row_D[:dimension]) or ("non-finite" if behind == "non-finite" else None)
