"""FedAvg: the plain average of the round's updates; and FedProx and MOON, whose idea is in the local training."""

from types import MappingProxyType
from typing import Literal

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import examples, uniform


class FedAvgSettings(PolicySettings):
    weighting: Literal["uniform", "samples"] = setting(
        "uniform",
        "What an update counts: the same each, or by the examples that its client holds.",
        "WKAFL paper, Eq. 2; in synchronous rounds McMahan et al.",
    )


class FedAvg(Policy[FedAvgSettings]):
    """The average of the updates, whatever their staleness.

        direction_d = sum_i p_i * g_i,   p_i = 1/K, or n_i / sum_j n_j for weighting="samples"

    n: num_examples_K. In synchronous rounds n_i weighs by default, as published; in the K-async loop everyone counts
    the same.
    Source: FedAvg (McMahan et al., AISTATS 2017), docs/methods/policies.md#fedavg
    """

    Settings = FedAvgSettings
    column_wise = True
    synchronous_defaults = MappingProxyType({"weighting": "samples"})

    def step(self, batch: UpdateBatch) -> Step:
        by_samples = self.settings.weighting == "samples"
        return self.weighted(batch, examples(batch.num_examples_K) if by_samples else uniform(len(batch)))


class FedProx(FedAvg):
    """The average of updates from clients that pay for moving away from the model they were sent.

        direction_d = sum_i p_i * g_i,   p as in FedAvg

    The method is in the local training `fedprox`, which adds mu * (w - w_b) to every gradient; the server is FedAvg's.
    Source: FedProx (Li et al., MLSys 2020), docs/methods/policies.md#fedprox
    """

    training = "fedprox"


class Moon(FedAvg):
    """The average of updates from clients that train with a contrastive loss against their own last model.

        direction_d = sum_i p_i * g_i,   p as in FedAvg

    The method is in the local training `moon`; the server is FedAvg's.
    Source: MOON (Li et al., CVPR 2021), docs/methods/policies.md#moon
    """

    training = "moon"
