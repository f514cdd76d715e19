"""What the policies share whose server only averages: FedAvg, and those whose idea lies in the local training."""

from types import MappingProxyType
from typing import Literal

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import examples, uniform


class AveragingSettings(PolicySettings):
    weighting: Literal["uniform", "samples"] = setting(
        "uniform",
        "What an update counts: the same each, or by the examples that its client holds.",
        "WKAFL paper, Eq. 2; in synchronous rounds McMahan et al.",
    )


class Averaging(Policy[AveragingSettings]):
    """The average of the updates, whatever their staleness.

        direction_d = sum_i p_i * g_i,   p_i = 1/K, or n_i / sum_j n_j for weighting="samples"

    g: rows of updates.matrix_Kd, float32, one device; not written to. n: num_examples_K. In synchronous rounds n_i
    weighs by default, as published; in the K-async loop everyone counts the same.
    Source: FedAvg (McMahan et al., AISTATS 2017), docs/methods/policies.md#fedavg
    """

    Settings = AveragingSettings
    column_wise = True
    synchronous_defaults = MappingProxyType({"weighting": "samples"})

    def step(self, batch: UpdateBatch) -> Step:
        by_samples = self.settings.weighting == "samples"
        weights_K = examples(batch.num_examples_K) if by_samples else uniform(len(batch))
        return self.weighted(batch, weights_K)
