"""Coordinate median: in every coordinate, the median of the updates."""

import torch
from torch import Tensor

from unstale.policies.order_statistics import middle_mean
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import uniform


class CoordinateMedian(Policy[PolicySettings]):
    """The median of the updates, each coordinate for itself; fewer than half of them cannot drag it away.

        direction[j] = median_i g_i[j],   of an even K the mean of the two in the middle

    g: rows of updates.matrix_Kd, float32, one device; not written to. Staleness and examples do not matter.
    The weights of the step are 1/K each: which update was the median differs from coordinate to coordinate.
    Definition 1 of the paper.
    Source: Robust statistics (Yin et al., ICML 2018), docs/methods/policies-robust.md#coordinate-median
    """

    source = "Robust statistics (Yin et al., ICML 2018), docs/methods/policies-robust.md#coordinate-median"

    def step(self, batch: UpdateBatch) -> Step:
        rows = len(batch)
        direction_d = middle_mean(batch.matrix_Kd, max((rows - 1) // 2, 0), out_d=self.result_d)
        return Step(direction_d=direction_d, rate_factor=1.0, weights_K=uniform(rows))

    def buffers_change(self, changes_Kb: Tensor, weights_K: Tensor) -> Tensor:  # noqa: ARG002
        """The median of each, whatever the weights: one client cannot drag them away."""
        return middle_mean(changes_Kb, (len(changes_Kb) - 1) // 2, out_d=torch.empty_like(changes_Kb[0]))
