"""Weighted aggregation: an update loses half of its weight in every so many rounds."""

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import halving, uniform


class WeightedSettings(PolicySettings):
    half_life: float = setting(
        20.0, "Rounds in which an update loses half of its weight.", "code released with Wang & Gao", gt=0
    )


class Weighted(Policy[WeightedSettings]):
    """The average of the updates, each damped by half for every half-life that it is late.

        direction_d = (1/K) * sum_i 2^(-s_i / half_life) * g_i

    s: staleness, rounds, 0 is fresh; the source's epochs are rounds. g: rows of updates.matrix_Kd, float32, one device;
    not written to. Not normalised: a round of stale updates takes a smaller step.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/policies.md#weighted
    """

    Settings = WeightedSettings
    column_wise = True
    loops = ("sync", "k-async")
    source = "Gradient inversion (Wang & Gao, 2023), docs/methods/policies.md#weighted"

    def step(self, batch: UpdateBatch) -> Step:
        weights_K = uniform(len(batch)) * halving(batch.staleness_K, self.settings.half_life)
        return self.weighted(batch, weights_K)
