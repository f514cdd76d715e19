"""Geometric median: the point from which the distances to all updates add up to the least."""

from pydantic import Field
from torch import Tensor

from unstale.policies.gram import gram
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import normalise, uniform


class GeometricMedianSettings(PolicySettings):
    iterations: int = Field(
        1000,
        ge=1,
        description="The most iterations of Weiszfeld's algorithm.",
        json_schema_extra={
            "source": "ours: Pillutla et al. stop early, where an iteration costs a round of messages"
        },
    )
    tolerance: float = Field(
        1e-9,
        ge=0,
        description="Stop when the point moves by at most this share of its median distance to the updates.",
        json_schema_extra={"source": "ours: below what float32 shows of the result"},
    )
    smoothing: float = Field(
        1e-8,
        gt=0,
        description="The least distance that an update is taken to have, in units of the updates.",
        json_schema_extra={"source": "ours; nu of Pillutla et al., who have 1e-6"},
    )


class GeometricMedian(Policy[GeometricMedianSettings]):
    """The point with the least sum of distances to the updates; fewer than half of them cannot drag it away.

        direction_d = z = argmin_z sum_i |z - g_i|

    by Weiszfeld's algorithm from the mean: p = normalise(1 / max(smoothing, |z - g_i|)), z = sum_i p_i g_i, and again.
    g: rows of updates.matrix_Kd, float32, one device; not written to. Staleness and examples do not matter.
    z is always a mixture of the rows, so the distances follow from the rows' products: an iteration costs K x K, and
    the matrix is read twice in all. The weights of the step are the last p.
    Source: Pillutla et al. 2022, algorithm 2 (smoothed Weiszfeld) with equal weights alpha.
    """

    Settings = GeometricMedianSettings
    source = "Pillutla et al. 2022, Robust Aggregation for Federated Learning (RFA)"

    def step(self, batch: UpdateBatch) -> Step:
        weights_K = uniform(len(batch))
        products_KK = gram(batch.matrix_Kd)
        for _ in range(self.settings.iterations if len(batch) > 2 else 0):
            distances_K = self._distances(products_KK, weights_K)
            moved_K = normalise(1 / distances_K) - weights_K
            weights_K = weights_K + moved_K
            # The median, because a wild update would make any movement look small against the mean.
            reached = self.settings.tolerance * float(distances_K.median())
            if float(moved_K @ products_KK @ moved_K) <= reached**2:
                break
        return self.weighted(batch, weights_K)

    def _distances(self, products_KK: Tensor, weights_K: Tensor) -> Tensor:
        """|z - g_i| for z = sum_i p_i g_i, [K] float64, at least `smoothing`."""
        along_K = products_KK @ weights_K  # g_i . z
        squared_K = products_KK.diagonal() - 2 * along_K + weights_K @ along_K
        return squared_K.clamp(min=0).sqrt().clamp(min=self.settings.smoothing)
