"""FedBuff: a buffer of K updates, each damped by the square root of its age."""

from types import MappingProxyType
from typing import Literal

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import polynomial, uniform


class FedBuffSettings(PolicySettings):
    staleness: Literal["polynomial", "none"] = setting(
        "polynomial",
        "How staleness s damps an update: by 1 / sqrt(1 + s), or not at all.",
        "Nguyen et al.; released re-implementations: none",
    )


class FedBuff(Policy[FedBuffSettings]):
    """The average of the updates, each damped by 1 / sqrt(1 + staleness).

        direction_d = (1/K) * sum_i g_i / sqrt(1 + s_i)

    s: staleness, rounds, 0 is fresh. g: rows of updates.matrix_Kd, float32, one device; not written to.
    K: updates in the batch, also when a round closed with fewer than the trigger asks for. Not normalised: a
    round of stale updates takes a smaller step.
    Source: FedBuff (Nguyen et al., AISTATS 2022), docs/methods/policies.md#fedbuff
    """

    Settings = FedBuffSettings
    column_wise = True
    loops = ("k-async",)
    reference_defaults = MappingProxyType({"staleness": "none"})
    source = "FedBuff (Nguyen et al., AISTATS 2022), docs/methods/policies.md#fedbuff"

    def step(self, batch: UpdateBatch) -> Step:
        weights_K = uniform(len(batch))
        if self.settings.staleness == "polynomial":
            weights_K = weights_K * polynomial(batch.staleness_K, 0.5)
        return self.weighted(batch, weights_K)
