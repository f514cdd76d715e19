"""Weights of updates, and the weighted sum of the rows of the matrix of updates [K, d].

Weights are [K] float64 on the CPU; the sum is float32 on the device of the matrix.
Source: docs/methods/README.md#numerical-conventions

Legend: K updates of the round, in order of arrival; d parameters.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def normalise(raw_K: Tensor) -> Tensor:
    """Return raw_K / sum(raw_K), or 1/K each if the sum is 0 or not finite. raw_K: [K] float64, >= 0."""
    total = float(raw_K.sum())
    if total == 0 or not math.isfinite(total):
        return uniform(len(raw_K))
    return raw_K / total


def uniform(count: int) -> Tensor:
    """Return 1/K for each of `count` = K updates."""
    return torch.full((count,), 1 / max(count, 1), dtype=torch.float64)


def polynomial(staleness_K: Tensor, exponent: float) -> Tensor:
    """Return (s + 1)^-exponent for each update. staleness_K: [K] int64, rounds, 0 is fresh."""
    return (_as_float64(staleness_K) + 1) ** -exponent


def exponential(staleness_K: Tensor) -> Tensor:
    """Return (e/2)^-s for each update; 0 from s = 2429 on. staleness_K: [K] int64, rounds, 0 is fresh."""
    return (math.e / 2) ** -_as_float64(staleness_K)


def halving(staleness_K: Tensor, half_life: float) -> Tensor:
    """Return 2^(-s / half_life) for each update. staleness_K: [K] int64, rounds, 0 is fresh. half_life: rounds, > 0."""
    return 2.0 ** -(_as_float64(staleness_K) / half_life)


def examples(num_examples_K: Tensor) -> Tensor:
    """Return n_i / sum n. num_examples_K: [K] int64, >= 1."""
    return normalise(_as_float64(num_examples_K))


def weighted_sum(matrix_Kd: Tensor, weights_K: Tensor, out_d: Tensor | None = None) -> Tensor:
    """Compute sum_i weights_i * row_i, [d] float32, in one read of the matrix; zeros for no rows.

    matrix_Kd: float32. weights_K: float64 on the CPU, rounded to float32 for the sum; or the result of
    `device_weights`. out_d: receives the result.
    """
    if matrix_Kd.requires_grad:  # rare; `no_grad` in each call costs as much as the conversion of weights_K
        matrix_Kd = matrix_Kd.detach()
    if out_d is None:
        out_d = torch.empty(matrix_Kd.shape[1], dtype=torch.float32, device=matrix_Kd.device)
    return torch.mv(matrix_Kd.T, device_weights(weights_K, matrix_Kd.device), out=out_d)


def device_weights(weights_K: Tensor, device: torch.device) -> Tensor:
    """Copy weights to a device in float32, without waiting for a CUDA device."""
    # CUDA has read pageable memory when the call returns; MPS may not have.
    return weights_K.to(device, torch.float32, non_blocking=device.type == "cuda")


def first_rows(client_ids_K: Tensor, clients: set[int]) -> list[int]:
    """Return the index of each listed client's first update, and remove these clients from the set."""
    rows = []
    for row, client in enumerate(client_ids_K.tolist()):
        if client in clients:
            clients.remove(client)
            rows.append(row)
    return rows


def on_rows(rows: Sequence[int], weight: float, count: int) -> Tensor:
    """Return `weight` for the listed rows of `count` = K rows, and 0 for the others."""
    weights_K = torch.zeros(count, dtype=torch.float64)
    weights_K[list(rows)] = weight
    return weights_K


def add_drift(
    direction_d: Tensor, model_d: Tensor, base_models: Sequence[Tensor], shares_K: Tensor, rate: float
) -> None:
    """Add (1 / rate) sum_i shares_i (w - w_b_i) to the direction, in place.

    Clients often share a base model, so each is added once, without a matrix of differences. model_d: w, the current
    model. base_models: w_b_i, of update i. shares_K: float64 on the CPU; other vectors are float32. rate: > 0.
    """
    bases: dict[int, tuple[Tensor, float]] = {}
    for base_d, share in zip(base_models, shares_K.tolist(), strict=True):
        if base_d is not model_d:
            _, factor = bases.get(id(base_d), (base_d, 0.0))
            bases[id(base_d)] = (base_d, factor - share)
    if not bases:
        return
    with torch.no_grad():
        direction_d.add_(model_d, alpha=-sum(factor for _, factor in bases.values()) / rate)
        for base_d, factor in bases.values():
            direction_d.add_(base_d, alpha=factor / rate)


def column_chunks(matrix_Kd: Tensor) -> Iterator[slice]:
    """Split the columns of a matrix into chunks, for small intermediate results.

    On a CPU a chunk fits the cache, so several passes over a chunk read it from memory once.
    """
    rows, columns = matrix_Kd.shape
    return _chunks(rows, columns, 2**17 if matrix_Kd.device.type == "cpu" else 2**24)  # 512 KiB or 64 MiB


def wide_chunks(rows: int, columns: int, device: torch.device) -> Iterator[slice]:
    """Split the columns of a matrix into chunks for sums: 16 MiB, on an accelerator 256 MiB.

    The boundaries affect the last bits of a sum, so rows on disk are summed with the same boundaries as rows in memory.
    """
    return _chunks(rows, columns, 2**22 if device.type == "cpu" else 2**26)


def _chunks(rows: int, columns: int, numbers: int) -> Iterator[slice]:
    width = max(numbers // max(rows, 1), 1)
    for start in range(0, columns, width):
        yield slice(start, min(start + width, columns))


def _as_float64(values_K: Tensor) -> Tensor:
    return values_K.to("cpu", torch.float64)
