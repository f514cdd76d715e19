"""REFL: a stale update weighs by its age, and more the more it differs from the fresh ones."""

import torch
from torch import Tensor

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import column_chunks, normalise, uniform

_ROUNDING = 1e-12
"""Squared deviations up to this share of the fresh average's square are what float32 rounding leaves of 0."""


class ReflSettings(PolicySettings):
    beta: float = setting(
        0.35,
        "How much of a stale update's weight comes from its deviation; the rest comes from its age.",
        "REFL's released code and run scripts",
        ge=0,
        le=1,
    )


class Refl(Policy[ReflSettings]):
    """The freshest updates weigh 1; others by their age and by how much they deviate from the freshest.

        direction_d = sum_i p_i * g_i,   p = normalise(phat)
        phat_i = 1 for the freshest, s_i = smin, whose average is uF;
                 (1 - beta) / (s_i - smin + 1) + beta * (1 - exp(-L_i / Lmax)) for the others,
        L_i = |g_i - uF|^2,   Lmax = max L_i over the others;   L_i / Lmax = 0 where Lmax = 0

    smin: the least of the round. Only the ratios of deviations count, so the published deviation, which is proportional
    to L, gives the same weights. REFL's choice of participants is not part of it.
    Source: REFL (Abdelmoniem et al., EuroSys 2023), docs/methods/policies.md#refl
    """

    Settings = ReflSettings
    loops = ("k-async",)

    def step(self, batch: UpdateBatch) -> Step:
        return self.weighted(batch, self._weights(batch))

    def _weights(self, batch: UpdateBatch) -> Tensor:
        if len(batch) == 0:
            return uniform(0)
        late_K = (batch.staleness_K - batch.staleness_K.min()).to("cpu", torch.float64)
        fresh_K = late_K == 0
        if bool(fresh_K.all()):
            return uniform(len(batch))
        beta = self.settings.beta
        ratio_K = _deviations(batch.matrix_Kd, fresh_K)
        stale_K = (1 - beta) / (late_K + 1) + beta * (1 - torch.exp(-ratio_K))
        return normalise(torch.where(fresh_K, 1.0, stale_K))


@torch.no_grad()
def _deviations(matrix_Kd: Tensor, fresh_K: Tensor) -> Tensor:
    """L_i / Lmax for each row, [K] float64 on the CPU; of no meaning for the fresh ones.

    In one read of the matrix. The differences are taken before they are squared: |g|^2 - 2 g.uF + |uF|^2 would lose
    small ones.
    """
    device = matrix_Kd.device
    mean_K = (fresh_K / fresh_K.sum()).to(device, torch.float32)
    squares_K = torch.zeros(len(matrix_Kd), dtype=torch.float64)
    fresh_square = 0.0
    for columns in column_chunks(matrix_Kd):
        part_Kc = matrix_Kd[:, columns]
        fresh_c = torch.mv(part_Kc.T, mean_K)
        squares_K += (part_Kc - fresh_c).square_().sum(1).cpu()
        fresh_square += float(fresh_c.dot(fresh_c))
    largest = float(squares_K[~fresh_K].max())
    if largest <= _ROUNDING * fresh_square:
        return torch.zeros_like(squares_K)
    return squares_K / largest
