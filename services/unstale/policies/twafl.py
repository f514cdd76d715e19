"""TWAFL: temporally weighted aggregation, weights falling exponentially with age."""

from types import MappingProxyType
from typing import Literal

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import examples, exponential, normalise, uniform


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

    s: staleness, rounds, 0 is fresh. m: batch_sizes_K, or 1 for weighting="equal". g: rows of
    updates.matrix_Kd, float32, one device; not written to.
    normalise=False takes p_i = (m_i / sum_j m_j) * (e/2)^-s_i instead.
    Ages are counted from the freshest update of the round, so that nothing underflows.
    Source: TWAFL (Chen et al., 2019), docs/methods/policies.md#twafl
    """

    Settings = TwaflSettings
    column_wise = True
    loops = ("k-async",)
    reference_defaults = MappingProxyType({"weighting": "equal"})
    source = "TWAFL (Chen et al., 2019), docs/methods/policies.md#twafl"

    def step(self, batch: UpdateBatch) -> Step:
        by_examples = self.settings.weighting == "examples"
        sizes_K = batch.num_examples_K if batch.batch_sizes_K is None else batch.batch_sizes_K
        share_K = examples(sizes_K) if by_examples else uniform(len(batch))
        if self.settings.normalise and len(batch) > 0:
            weights_K = normalise(share_K * exponential(batch.staleness_K - batch.staleness_K.min()))
        else:
            weights_K = share_K * exponential(batch.staleness_K)
        return self.weighted(batch, weights_K)
