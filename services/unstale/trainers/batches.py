"""Sizes of batches of any form."""

from typing import Any

from unstale.training.nests import tensors


def examples_in(batch: Any) -> int:
    """Number of examples: the first dimension of the first tensor that has one."""
    return next((len(tensor) for tensor in tensors(batch) if tensor.dim()), 1)
