"""DynSGD: weights inversely proportional to age, counted from 1."""

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import normalise, polynomial, uniform


class DynSgdSettings(PolicySettings):
    normalise: bool = setting(True, "Scale the weights to sum 1; otherwise divide them by K.", "FedHist paper, Eq. 4")


class DynSgd(Policy[DynSgdSettings]):
    """An update s rounds late weighs 1 / (s + 1).

        direction_d = sum_i p_i * g_i,   p = normalise(1 / (s_i + 1))

    s: staleness, rounds, 0 is fresh. g: rows of updates.matrix_Kd, float32, one device; not written to.
    normalise=False divides by K instead (then equal to SASGD).
    The paper's tau is s + 1.
    Source: DynSGD (Jiang et al., SIGMOD 2017), docs/methods/policies.md#dynsgd
    """

    Settings = DynSgdSettings
    column_wise = True
    loops = ("k-async",)
    source = "DynSGD (Jiang et al., SIGMOD 2017), docs/methods/policies.md#dynsgd"

    def step(self, batch: UpdateBatch) -> Step:
        raw_K = polynomial(batch.staleness_K, 1.0)
        weights_K = normalise(raw_K) if self.settings.normalise else raw_K * uniform(len(batch))
        return self.weighted(batch, weights_K)
