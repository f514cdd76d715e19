"""Norm clipping: no update is longer than a bound when the policy sees it.

Legend: K updates of the round, in order of arrival; d parameters.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.stages.stage import Stage
from unstale.policies.weights import column_chunks


class ClippingSettings(PolicySettings):
    clip_norm: float


class Clipping(Stage[ClippingSettings]):
    """Scales every update that is longer than c down to c, before the inner policy.

        g_i <- g_i * min(1, c / |g_i|)

    c: clip_norm. g: rows of the batch's matrix_Kd, which is not written to: a round in which some row is too long is
    scaled into memory that is kept for the next one, as large as the largest such round; any other round is passed on
    as it is. `extra_Kd` is not clipped.
    """

    is_homogeneous = False

    def __init__(self, settings: ClippingSettings, inner: Policy[Any]) -> None:
        super().__init__(settings, inner)
        self.column_wise = False  # it looks at every row
        self._scaled_Kd = torch.empty(0, self.dimension, device=self.device)

    def step(self, batch: UpdateBatch) -> Step:
        factors_K = (self.settings.clip_norm / _norms(batch.matrix_Kd)).clamp(max=1)
        if bool((factors_K < 1).any()):
            batch = replace(batch, matrix_Kd=self._scaled(batch.matrix_Kd, factors_K))
        return self.inner.step(batch)

    def _scaled(self, matrix_Kd: Tensor, factors_K: Tensor) -> Tensor:
        rows = len(matrix_Kd)
        if rows > len(self._scaled_Kd):
            self._scaled_Kd = torch.empty_like(matrix_Kd, memory_format=torch.contiguous_format)
        factors_K = factors_K.to(matrix_Kd.device, torch.float32)
        return torch.mul(matrix_Kd, factors_K[:, None], out=self._scaled_Kd[:rows])


def _norms(matrix_Kd: Tensor) -> Tensor:
    """|g_i|, [K] float64 on the CPU. Chunks of columns are summed in float32, then each other in float64."""
    squares_K = torch.zeros(len(matrix_Kd), dtype=torch.float64)
    for chunk in column_chunks(matrix_Kd):
        # `sum` adds in a tree; `vector_norm` does not, and is 1e-5 off where all values are equal.
        squares_K += matrix_Kd[:, chunk].square().sum(dim=1).to("cpu", torch.float64)
    for row in torch.nonzero(torch.isinf(squares_K)).flatten().tolist():  # a norm of 1e20 has no square in float32
        squares_K[row] = matrix_Kd[row].to("cpu", torch.float64).square().sum()
    return squares_K.sqrt()
