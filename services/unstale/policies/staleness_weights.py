"""Averages in which an update weighs the less the staler it is: DynSGD, FedBuff, SASGD, TWAFL and `weighted`."""

from types import MappingProxyType
from typing import Literal

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import examples, exponential, halving, normalise, polynomial, uniform


class DynSgdSettings(PolicySettings):
    normalise: bool = setting(True, "Scale the weights to sum 1; otherwise divide them by K.", "FedHist paper, Eq. 4")


class DynSgd(Policy[DynSgdSettings]):
    """An update s rounds late weighs 1 / (s + 1).

        direction_d = sum_i p_i * g_i,   p = normalise(1 / (s_i + 1))

    normalise=False divides by K instead (then equal to SASGD).
    The paper's tau is s + 1.
    Source: DynSGD (Jiang et al., SIGMOD 2017), docs/methods/policies.md#dynsgd
    """

    Settings = DynSgdSettings
    column_wise = True
    loops = ("k-async",)

    def step(self, batch: UpdateBatch) -> Step:
        raw_K = polynomial(batch.staleness_K, 1.0)
        return self.weighted(batch, normalise(raw_K) if self.settings.normalise else raw_K * uniform(len(batch)))


class FedBuffSettings(PolicySettings):
    staleness: Literal["polynomial", "none"] = setting(
        "polynomial",
        "How staleness s damps an update: by 1 / sqrt(1 + s), or not at all.",
        "Nguyen et al.; released re-implementations: none",
    )


class FedBuff(Policy[FedBuffSettings]):
    """The average of the updates, each damped by 1 / sqrt(1 + staleness).

        direction_d = (1/K) * sum_i g_i / sqrt(1 + s_i)

    K: updates in the batch, also when a round closed with fewer than the trigger asks for. Not normalised: a
    round of stale updates takes a smaller step.
    Source: FedBuff (Nguyen et al., AISTATS 2022), docs/methods/policies.md#fedbuff
    """

    Settings = FedBuffSettings
    column_wise = True
    loops = ("k-async",)
    reference_defaults = MappingProxyType({"staleness": "none"})

    def step(self, batch: UpdateBatch) -> Step:
        weights_K = uniform(len(batch))
        if self.settings.staleness == "polynomial":
            weights_K = weights_K * polynomial(batch.staleness_K, 0.5)
        return self.weighted(batch, weights_K)


class SasgdSettings(PolicySettings):
    divide_by_k: bool = setting(
        True,
        "Divide by the K updates of the round; otherwise the step is K times larger.",
        "WKAFL paper; three of its four released files leave it out",
    )


class Sasgd(Policy[SasgdSettings]):
    """Each update moves the model by its own learning rate, divided by its age.

        direction_d = (1/K) * sum_i g_i / (s_i + 1)

    divide_by_k=False leaves out 1/K, as some of the code released with the WKAFL paper does.
    The paper's tau is s + 1.
    Source: SASGD (Zhang et al., IJCAI 2016), docs/methods/policies.md#sasgd
    """

    Settings = SasgdSettings
    column_wise = True
    loops = ("k-async",)
    reference_defaults = MappingProxyType({"divide_by_k": False})

    def step(self, batch: UpdateBatch) -> Step:
        weights_K = polynomial(batch.staleness_K, 1.0)
        if self.settings.divide_by_k:
            weights_K = weights_K * uniform(len(batch))
        return self.weighted(batch, weights_K)


class TwaflSettings(PolicySettings):
    normalise: bool = setting(
        True,
        "Scale the weights to sum 1; otherwise rounds of very stale updates hardly move.",
        "ours: the raw formula of the WKAFL paper would hardly train",
    )
    weighting: Literal["examples", "equal"] = setting(
        "examples",
        "What a fresh update counts: by the examples behind it, or the same each.",
        "WKAFL paper, 6.1.2; its released code: equal",
    )


class Twafl(Policy[TwaflSettings]):
    """An update s rounds late weighs (e/2)^-s times its share of the examples.

        direction_d = sum_i p_i * g_i,   p = normalise(m_i * (e/2)^-s_i)

    m: batch_sizes_K, or 1 for weighting="equal".
    normalise=False takes p_i = (m_i / sum_j m_j) * (e/2)^-s_i instead.
    Ages are counted from the freshest update of the round, so that nothing underflows.
    Source: TWAFL (Chen et al., 2019), docs/methods/policies.md#twafl
    """

    Settings = TwaflSettings
    column_wise = True
    loops = ("k-async",)
    reference_defaults = MappingProxyType({"weighting": "equal"})

    def step(self, batch: UpdateBatch) -> Step:
        by_examples = self.settings.weighting == "examples"
        sizes_K = batch.num_examples_K if batch.batch_sizes_K is None else batch.batch_sizes_K
        share_K = examples(sizes_K) if by_examples else uniform(len(batch))
        if self.settings.normalise and len(batch) > 0:
            weights_K = normalise(share_K * exponential(batch.staleness_K - batch.staleness_K.min()))
        else:
            weights_K = share_K * exponential(batch.staleness_K)
        return self.weighted(batch, weights_K)


class WeightedSettings(PolicySettings):
    half_life: float = setting(
        20.0, "Rounds in which an update loses half of its weight.", "code released with Wang & Gao", gt=0
    )


class Weighted(Policy[WeightedSettings]):
    """The average of the updates, each damped by half for every half-life that it is late.

        direction_d = (1/K) * sum_i 2^(-s_i / half_life) * g_i

    The source's epochs are rounds. Not normalised: a round of stale updates takes a smaller step.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/policies.md#weighted
    """

    Settings = WeightedSettings
    column_wise = True
    loops = ("sync", "k-async")

    def step(self, batch: UpdateBatch) -> Step:
        return self.weighted(batch, uniform(len(batch)) * halving(batch.staleness_K, self.settings.half_life))
