"""What the weighted policies share: how staleness becomes a weight, and the one sum over the matrix.

Weights are [K] float64 on the CPU; the sum itself is float32 on the matrix's device (algorithms.md 1.5).

Legend: K updates of the round, in order of arrival; d parameters.
"""

import math

import torch
from torch import Tensor


def normalise(raw_K: Tensor) -> Tensor:
    """raw_K / sum(raw_K), or 1/K each when the sum is 0 or not finite. raw_K: [K] float64, >= 0."""
    total = float(raw_K.sum())
    if total == 0 or not math.isfinite(total):
        return uniform(len(raw_K))
    return raw_K / total


def uniform(count: int) -> Tensor:
    """1/K for each of `count` = K updates; no weight at all for none."""
    return torch.full((count,), 1 / max(count, 1), dtype=torch.float64)


def polynomial(staleness_K: Tensor, exponent: float) -> Tensor:
    """(s + 1)^-exponent for each update. staleness_K: [K] int64, rounds, 0 is fresh."""
    return (_on_cpu(staleness_K) + 1) ** -exponent


def exponential(staleness_K: Tensor) -> Tensor:
    """(e/2)^-s for each update; 0 from s = 2429 on. staleness_K: [K] int64, rounds, 0 is fresh."""
    return (math.e / 2) ** -_on_cpu(staleness_K)


def examples(num_examples_K: Tensor) -> Tensor:
    """The share of the round's examples behind each update. num_examples_K: [K] int64, >= 1."""
    return normalise(_on_cpu(num_examples_K))


def weighted_sum(matrix_Kd: Tensor, weights_K: Tensor, out_d: Tensor | None = None) -> Tensor:
    """sum_i weights_i * row_i, [d] float32, in one read of the matrix: a new vector, or out_d.

    Zeros when there is no row. weights_K: [K] float64 on the CPU, rounded to float32 for the sum.
    """
    with torch.no_grad():
        if out_d is None:
            out_d = torch.empty(matrix_Kd.shape[1], dtype=torch.float32, device=matrix_Kd.device)
        return torch.mv(matrix_Kd.T, weights_K.to(matrix_Kd.device, torch.float32), out=out_d)


def _on_cpu(values_K: Tensor) -> Tensor:
    return values_K.to("cpu", torch.float64)
