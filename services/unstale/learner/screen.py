"""Whether a vector holds only numbers that can be added: one fast pass over it."""

import math

import torch
from torch import Tensor


def defect(vector_d: Tensor) -> str | None:
    """`"non-finite"`, the wire contract's reason, when there is a NaN or an infinity in it; None when not.

    vector_d: [d] float32, any device, not written to.
    """
    # A NaN or an infinity never leaves a sum again, and a sum is one read of the vector where `isfinite`
    # makes copies. Only finite numbers near the largest float32 make the sum overflow, so the exact look is
    # rare.
    if math.isfinite(float(vector_d.sum())) or bool(torch.isfinite(vector_d).all()):
        return None
    return "non-finite"
