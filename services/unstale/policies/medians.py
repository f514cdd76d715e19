"""Robust averages: the coordinate median, the trimmed mean and the geometric median.

Legend: K updates of the round, in order of arrival; d parameters; c columns of one chunk.
"""

import math
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from unstale.part_settings import setting
from unstale.policies.pairwise import gram
from unstale.policies.policy import Policy, PolicySettings, S, Step, UpdateBatch
from unstale.policies.weights import normalise, uniform, weighted_sum

WIDTH_ON_CPU, WIDTH_ELSEWHERE = 2**14, 2**20
"""Columns at a time: few enough that K rows of them stay in cache, enough that each call does some work."""

_SAME = 1e-7
"""Updates this share of their lengths apart are the same: float32 numbers, and products of them, tell no more."""


class _MedianOfBuffers(Policy[S]):
    """A policy that takes the median of the buffers' changes, whatever the weights: one client cannot drag it away."""

    def buffers_change(self, changes_Kb: Tensor, weights_K: Tensor) -> Tensor:  # noqa: ARG002
        return middle_mean(changes_Kb, (len(changes_Kb) - 1) // 2, out_d=torch.empty_like(changes_Kb[0]))


class CoordinateMedian(_MedianOfBuffers[PolicySettings]):
    """The median of the updates, each coordinate for itself; fewer than half of them cannot drag it away.

        direction[j] = median_i g_i[j],   of an even K the mean of the two in the middle

    Staleness and examples do not matter.
    The weights of the step are 1/K each: which update was the median differs from coordinate to coordinate.
    Definition 1 of the paper.
    Source: Robust statistics (Yin et al., ICML 2018), docs/methods/policies-robust.md#coordinate-median
    """

    def step(self, batch: UpdateBatch) -> Step:
        rows = len(batch)
        direction_d = middle_mean(batch.matrix_Kd, max((rows - 1) // 2, 0), out_d=self.result_d)
        return Step(direction_d=direction_d, rate_factor=1.0, weights_K=uniform(rows))


class TrimmedMeanSettings(PolicySettings):
    trim: float = setting(
        0.1,
        "Share of the round's updates left out at each end of every coordinate.",
        "ours; Yin et al. ask for at least the share of bad clients",
        ge=0,
        lt=0.5,
    )


class TrimmedMean(_MedianOfBuffers[TrimmedMeanSettings]):
    """The mean of the updates, each coordinate without its smallest and its largest values.

        direction[j] = mean of g_1[j] .. g_K[j] without the c smallest and the c largest,   c = floor(trim * K)

    Staleness and examples do not matter.
    A round too small for c >= 1 is the plain mean. The weights of the step are 1/K each: which updates were left out
    differs from coordinate to coordinate.
    Definition 2 of the paper, whose beta is `trim`.
    Source: Robust statistics (Yin et al., ICML 2018), docs/methods/policies-robust.md#trimmed-mean
    """

    Settings = TrimmedMeanSettings

    def step(self, batch: UpdateBatch) -> Step:
        rows = len(batch)
        # 0.29 * 100 is 28.999999999999996
        cut = min(math.floor(self.settings.trim * rows + 1e-9), max((rows - 1) // 2, 0))
        direction_d = middle_mean(batch.matrix_Kd, cut, out_d=self.result_d)
        return Step(direction_d=direction_d, rate_factor=1.0, weights_K=uniform(rows))


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


class GeometricMedian(_MedianOfBuffers[GeometricMedianSettings]):
    """The point with the least sum of distances to the updates; fewer than half of them cannot drag it away.

        direction_d = z = argmin_z sum_i |z - g_i|

    by Weiszfeld's algorithm from the mean: p = normalise(1 / max(nu, |z - g_i|)), z = sum_i p_i g_i, and again.
    nu: smoothing * spread, so that a z that happens to be an update leaves it again where it is not the median.
    spread: the least distance within which some update has more than half of all, itself included; where that is 0,
    such updates are the median.
    Staleness and examples do not matter.
    z is always a mixture of the rows, so the distances follow from the rows' products: an iteration costs K x K, and
    the matrix is read twice in all. The weights of the step are the last p.
    Algorithm 2 of the paper (smoothed Weiszfeld) with equal weights alpha.
    Source: RFA (Pillutla et al., IEEE TSP 2022), docs/methods/policies-robust.md#geometric-median
    """

    Settings = GeometricMedianSettings

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


def middle_mean(matrix_Kd: Tensor, cut: int, out_d: Tensor) -> Tensor:
    """Write to out_d the mean of each column without its `cut` smallest and its `cut` largest values.

    matrix_Kd: float32, finite, not written to; zeros result when it has no row. cut: >= 0, 2 * cut < K.
    """
    rows, columns = matrix_Kd.shape
    width = WIDTH_ON_CPU if matrix_Kd.device.type == "cpu" else WIDTH_ELSEWHERE
    with torch.no_grad():
        for first in range(0, columns, width):
            chunk_Kc = matrix_Kd[:, first : first + width]
            middle_Mc = _ordered(chunk_Kc)[cut : rows - cut] if cut else chunk_Kc
            weighted_sum(middle_Mc, uniform(len(middle_Mc)), out_d=out_d[first : first + width])
    return out_d


def _ordered(chunk_Kc: Tensor) -> Tensor:
    """A copy with each column sorted from its smallest value to its largest.

    By a sorting network over whole rows, ten times as fast here as sorting many short columns.
    """
    spare_c, *rows = torch.cat((chunk_Kc[:1], chunk_Kc)).unbind()
    for i, j in _network(len(rows)):
        torch.minimum(rows[i], rows[j], out=spare_c)
        torch.maximum(rows[i], rows[j], out=rows[j])
        rows[i], spare_c = spare_c, rows[i]
    return torch.stack(rows)


@cache
def _network(count: int) -> tuple[tuple[int, int], ...]:
    """Which pairs of `count` places to put into order, one after another, so that all are in the end."""
    return tuple(_merge_exchange(count))


def _merge_exchange(count: int) -> Iterator[tuple[int, int]]:
    """Batcher's merge exchange: Knuth, The Art of Computer Programming, 5.2.2, algorithm M, with its p, q, r, d."""
    top = 1 << max((count - 1).bit_length() - 1, 0)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            yield from ((i, i + d) for i in range(count - d) if i & p == r)
            if q == p:
                break
            q, r, d = q // 2, p, q - p
        p //= 2
