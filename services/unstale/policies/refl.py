"""REFL: the weight of a stale update depends on its age and on its deviation from the fresh ones."""

import torch
from torch import Tensor

from unstale.part_settings import setting
from unstale.policies import pairwise
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import column_chunks, device_weights, normalise, uniform

_ROUNDING = 1e-12
"""Squared deviations count as 0, a rounding error of float32, up to this share of the fresh average's square."""


class ReflSettings(PolicySettings):
    beta: float = setting(
        0.35,
        "Share of the deviation in a stale update's weight; the rest is the share of its age.",
        "REFL's released code and run scripts",
        ge=0,
        le=1,
    )


class Refl(Policy[ReflSettings]):
    """The freshest updates weigh 1; the others by their age and by their deviation from the freshest.

        direction_d = sum_i p_i * g_i,   p = normalise(phat)
        phat_i = 1 for the freshest (s_i = smin; uF is their average),
                 (1 - beta) / (s_i - smin + 1) + beta * (1 - exp(-L_i / Lmax)) for the others,
        L_i = |g_i - uF|^2,   Lmax = max L_i over the others;   L_i / Lmax = 0 where Lmax = 0

    smin: the least staleness of the round. Only the ratios of deviations count, so the published deviation, which is
    proportional to L, gives the same weights. REFL's selection of participants is not implemented.
    Source: REFL (Abdelmoniem et al., EuroSys 2023), docs/methods/policies.md#refl
    """

    Settings = ReflSettings
    loops = ("k-async",)

    def step(self, batch: UpdateBatch) -> Step:
        return self.weighted(batch, self._weights(batch))

    def _weights(self, batch: UpdateBatch) -> Tensor:
        if len(batch) == 0:
            return uniform(0)
        excess_K = (batch.staleness_K - batch.staleness_K.min()).to("cpu", torch.float64)
        fresh_K = excess_K == 0
        if bool(fresh_K.all()):
            return uniform(len(batch))
        beta = self.settings.beta
        ratio_K = _relative_deviations(batch.matrix_Kd, fresh_K)
        stale_K = (1 - beta) / (excess_K + 1) + beta * (1 - torch.exp(-ratio_K))
        return normalise(torch.where(fresh_K, 1.0, stale_K))


@torch.no_grad()
def _relative_deviations(matrix_Kd: Tensor, fresh_K: Tensor) -> Tensor:
    """L_i / Lmax for each row, [K] float64 on the CPU; meaningless for the freshest rows.

    Reads the matrix once. Subtracts before it squares: |g|^2 - 2 g.uF + |uF|^2 would round small differences away.
    """
    mean_K = device_weights(fresh_K / fresh_K.sum(), matrix_Kd.device)
    squares, fresh = [], []
    for columns in column_chunks(matrix_Kd):
        part_Kc = matrix_Kd[:, columns]
        fresh_c = torch.mv(part_Kc.T, mean_K)
        squares.append((part_Kc - fresh_c).square_().sum(1))
        fresh.append(fresh_c.dot(fresh_c))
    squares_K, fresh_square = map(pairwise.in_order, pairwise.read(squares, fresh))
    largest = float(squares_K[~fresh_K].max())
    if largest <= _ROUNDING * float(fresh_square):
        return torch.zeros_like(squares_K)
    return squares_K / largest
