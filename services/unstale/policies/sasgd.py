"""SASGD: staleness-aware SGD, the learning rate of each update divided by its age counted from 1."""

from types import MappingProxyType

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import polynomial, uniform


class SasgdSettings(PolicySettings):
    divide_by_k: bool = setting(
        True,
        "Divide by the K updates of the round; otherwise the step is K times larger.",
        "WKAFL paper; three of its four released files leave it out",
    )


class Sasgd(Policy[SasgdSettings]):
    """Each update moves the model by its own learning rate, divided by its age.

        direction_d = (1/K) * sum_i g_i / (s_i + 1)

    s: staleness, rounds, 0 is fresh. g: rows of updates.matrix_Kd, float32, one device; not written to.
    divide_by_k=False leaves out 1/K, as some of the code released with the WKAFL paper does.
    The paper's tau is s + 1.
    Source: SASGD (Zhang et al., IJCAI 2016), docs/methods/policies.md#sasgd
    """

    Settings = SasgdSettings
    column_wise = True
    loops = ("k-async",)
    reference_defaults = MappingProxyType({"divide_by_k": False})
    source = "SASGD (Zhang et al., IJCAI 2016), docs/methods/policies.md#sasgd"

    def step(self, batch: UpdateBatch) -> Step:
        weights_K = polynomial(batch.staleness_K, 1.0)
        if self.settings.divide_by_k:
            weights_K = weights_K * uniform(len(batch))
        return self.weighted(batch, weights_K)
