"""Geometric median: the point from which the distances to all updates add up to the least."""

import torch
from torch import Tensor

from unstale.part_settings import setting
from unstale.policies.gram import gram
from unstale.policies.order_statistics import middle_mean
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import normalise, uniform

_SAME = 1e-7
"""Updates this share of their lengths apart are the same: float32 numbers, and products of them, tell no more."""


class GeometricMedianSettings(PolicySettings):
    iterations: int = setting(
        1000,
        "The most iterations of Weiszfeld's algorithm.",
        "ours: Pillutla et al. stop early, where an iteration costs a round of messages",
        ge=1,
    )
    tolerance: float = setting(
        1e-9,
        "Stop when the point moves by at most this share of the updates' spread.",
        "ours: below what float32 shows of the result",
        ge=0,
    )
    smoothing: float = setting(
        1e-8,
        "The least distance that an update is taken to have, as a share of the updates' spread.",
        "ours; nu of Pillutla et al., who have 1e-6 in units of the updates, whatever their size",
        gt=0,
    )


class GeometricMedian(Policy[GeometricMedianSettings]):
    """The point with the least sum of distances to the updates; fewer than half of them cannot drag it away.

        direction_d = z = argmin_z sum_i |z - g_i|

    by Weiszfeld's algorithm from the mean: p = normalise(1 / max(nu, |z - g_i|)), z = sum_i p_i g_i, and again.
    nu: smoothing * spread, so that a z that happens to be an update leaves it again where it is not the median.
    spread: the least distance within which some update has more than half of all, itself included; where that is 0,
    such updates are the median.
    g: rows of updates.matrix_Kd, float32, one device; not written to. Staleness and examples do not matter.
    z is always a mixture of the rows, so the distances follow from the rows' products: an iteration costs K x K, and
    the matrix is read twice in all. The weights of the step are the last p.
    Algorithm 2 of the paper (smoothed Weiszfeld) with equal weights alpha.
    Source: RFA (Pillutla et al., IEEE TSP 2022), docs/methods/policies-robust.md#geometric-median
    """

    Settings = GeometricMedianSettings
    source = "RFA (Pillutla et al., IEEE TSP 2022), docs/methods/policies-robust.md#geometric-median"

    def step(self, batch: UpdateBatch) -> Step:
        weights_K = uniform(len(batch))
        if len(batch) > 2:
            weights_K = self._weiszfeld(gram(batch.matrix_Kd), weights_K)
        return self.weighted(batch, weights_K)

    def _weiszfeld(self, products_KK: Tensor, weights_K: Tensor) -> Tensor:
        """p of the median, [K] float64 on the CPU, from the p to begin with. products_KK: g_i . g_j, [K, K] float64."""
        reach_K = _reach(products_KK)
        spread = float(reach_K.min())
        if spread == 0:
            return normalise((reach_K == 0).double())
        least, enough = self.settings.smoothing * spread, self.settings.tolerance * spread
        for _ in range(self.settings.iterations):
            moved_K = normalise(1 / _distances(weights_K[None], products_KK)[0].clamp(min=least)) - weights_K
            weights_K = weights_K + moved_K
            if float(moved_K @ products_KK @ moved_K) <= enough**2:
                break
        return weights_K

    def buffers_change(self, changes_Kb: Tensor, weights_K: Tensor) -> Tensor:  # noqa: ARG002
        """The median of each, whatever the weights: one client cannot drag them away."""
        return middle_mean(changes_Kb, (len(changes_Kb) - 1) // 2, out_d=torch.empty_like(changes_Kb[0]))


def _reach(products_KK: Tensor) -> Tensor:
    """The distance within which each update has more than half of all, itself included: [K] float64."""
    rows, lengths_K = len(products_KK), products_KK.diagonal().sqrt()
    apart_KK = _distances(torch.eye(rows, dtype=torch.float64), products_KK)
    apart_KK[apart_KK <= _SAME * (lengths_K[:, None] + lengths_K)] = 0
    return apart_KK.sort(dim=1).values[:, rows // 2]


def _distances(weights_nK: Tensor, products_KK: Tensor) -> Tensor:
    """|z_j - g_i| for z_j = sum_i p_ji g_i, [n, K] float64. weights_nK: p."""
    along_nK = weights_nK @ products_KK  # g_i . z_j
    own_n = (weights_nK * along_nK).sum(1)
    return (products_KK.diagonal() - 2 * along_nK + own_n[:, None]).clamp(min=0).sqrt()
