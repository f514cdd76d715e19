"""Trimmed mean: in every coordinate, the mean without the smallest and the largest values."""

import math

import torch
from torch import Tensor

from unstale.part_settings import setting
from unstale.policies.order_statistics import middle_mean
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import uniform


class TrimmedMeanSettings(PolicySettings):
    trim: float = setting(
        0.1,
        "Share of the round's updates left out at each end of every coordinate.",
        "ours; Yin et al. ask for at least the share of bad clients",
        ge=0,
        lt=0.5,
    )


class TrimmedMean(Policy[TrimmedMeanSettings]):
    """The mean of the updates, each coordinate without its smallest and its largest values.

        direction[j] = mean of g_1[j] .. g_K[j] without the c smallest and the c largest,   c = floor(trim * K)

    g: rows of updates.matrix_Kd, float32, one device; not written to. Staleness and examples do not matter.
    A round too small for c >= 1 is the plain mean. The weights of the step are 1/K each: which updates were left out
    differs from coordinate to coordinate.
    Definition 2 of the paper, whose beta is `trim`.
    Source: Robust statistics (Yin et al., ICML 2018), docs/methods/policies-robust.md#trimmed-mean
    """

    Settings = TrimmedMeanSettings
    source = "Robust statistics (Yin et al., ICML 2018), docs/methods/policies-robust.md#trimmed-mean"

    def step(self, batch: UpdateBatch) -> Step:
        rows = len(batch)
        # 0.29 * 100 is 28.999999999999996
        cut = min(math.floor(self.settings.trim * rows + 1e-9), max((rows - 1) // 2, 0))
        direction_d = middle_mean(batch.matrix_Kd, cut, out_d=self.result_d)
        return Step(direction_d=direction_d, rate_factor=1.0, weights_K=uniform(rows))

    def buffers_change(self, changes_Kb: Tensor, weights_K: Tensor) -> Tensor:  # noqa: ARG002
        """The median of each, whatever the weights: one client cannot drag them away."""
        return middle_mean(changes_Kb, (len(changes_Kb) - 1) // 2, out_d=torch.empty_like(changes_Kb[0]))
