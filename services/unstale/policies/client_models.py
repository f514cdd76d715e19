"""Policies that average the clients' models, not only their updates: FedAsync, and `direct` with stale models."""

from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import add_drift, polynomial, uniform, weighted_sum


class DirectSettings(PolicySettings):
    stale_form: Literal["delta", "model"] = setting(
        "delta",
        "What of a stale client is averaged: the update that it made, or the model that it ended with.",
        "code released with Wang & Gao; their text speaks of the stale model",
    )


class Direct(Policy[DirectSettings]):
    """The average of the updates, stale ones unchanged.

        direction_d = (1/K) * sum_i g_i                          for stale_form="delta"
        direction_d = (1/K) * sum_i (g_i + (w - w_b_i) / eta_l_i)  for stale_form="model"

    The second is the update u_i = w - w_end_i that leads from the current model to the one that the client ended with,
    w_end_i = w_b_i - eta_l_i g_i, divided by eta_l_i as every update is; at eta = eta_l the next model is the average
    of the w_end_i.
    g: rows of updates.matrix_Kd; w: model_d; w_b: base_models, w when there are none; all float32, one device; not
    written to. eta_l: local_rates_K, the server's rate when there are none.
    docs/methods/README.md#updates-and-learning-rates defines u and eta_l.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/policies.md#direct
    """

    Settings = DirectSettings
    loops = ("sync", "k-async")
    memory = "none; live versions for stale_form=model"

    def __init__(self, settings: DirectSettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
        self.needs_base_models = settings.stale_form == "model"

    def step(self, batch: UpdateBatch) -> Step:
        weights_K = uniform(len(batch))
        step = self.weighted(batch, weights_K)
        if self.needs_base_models and batch.base_models is not None:
            assert batch.model_d is not None, "base models came without the current model"
            if batch.local_rates_K is None:
                shares_K = weights_K / batch.rate
            else:
                shares_K = weights_K / batch.local_rates_K.to("cpu", torch.float64)
            add_drift(step.direction_d, batch.model_d, batch.base_models, shares_K, rate=1.0)
        return step


class FedAsyncSettings(PolicySettings):
    alpha: float = setting(0.6, "Share of a fresh client's model in the mixture.", "Xie et al.", gt=0, le=1)
    staleness: Literal["polynomial", "constant", "hinge"] = setting(
        "polynomial",
        "How staleness s lowers that share: (s + 1)^-exponent, not at all, or past b rounds.",
        "Xie et al.; the default among them is ours",
    )
    exponent: float = setting(0.5, "For polynomial: the exponent.", "Xie et al.", ge=0)
    a_h: float = setting(10.0, "For hinge: the share is divided by 1 + a_h (s - b) when s > b.", "Xie et al.", gt=0)
    b: int = setting(4, "For hinge: staleness up to which nothing is lowered, rounds.", "Xie et al.; FLGo: 6", ge=0)
    hinge_plus_one: bool = setting(
        True,
        "For hinge: whether the divisor has its 1 +; without it, it is at least 1 all the same.",
        "Xie et al., Plato; FLGo leaves it out",
    )


class FedAsync(Policy[FedAsyncSettings]):
    """Mixes the model with the clients' models, one after another in order of arrival.

        w <- (1 - a_i) w + a_i (w_b_i - eta_l_i g_i),   a_i = alpha * f(s_i),   for i = 1..K

    which is one step, with c_i = a_i * prod_{j > i} (1 - a_j), the final weight of client i's model:

        direction_d = (1/eta) * sum_i c_i (eta_l_i g_i + w - w_b_i)

    s: staleness, rounds, 0 is fresh. g: rows of updates.matrix_Kd; w: model_d; w_b: base_models, w when there
    are none; all float32, one device; not written to. eta: rate, > 0. eta_l: local_rates_K, eta when there
    are none.
    The weights of the step are c; they sum to 1 - prod_i (1 - a_i).
    Source: FedAsync (Xie et al., 2019), docs/methods/policies.md#fedasync
    """

    Settings = FedAsyncSettings
    loops = ("k-async",)
    memory = "live versions"
    order_matters = True
    reference_defaults = MappingProxyType({"b": 6, "hinge_plus_one": False})
    needs_base_models = True

    def step(self, batch: UpdateBatch) -> Step:
        shares_K = self._shares(batch.staleness_K)
        if batch.local_rates_K is None:
            weights_K = shares_K
        else:
            weights_K = shares_K * (batch.local_rates_K.to("cpu", torch.float64) / batch.rate)
        direction_d = weighted_sum(batch.matrix_Kd, weights_K, out_d=self.result_d)
        if batch.base_models is not None:
            assert batch.model_d is not None, "base models came without the current model"
            add_drift(direction_d, batch.model_d, batch.base_models, shares_K, batch.rate)
        return Step(direction_d=direction_d, rate_factor=1.0, weights_K=shares_K)

    def _shares(self, staleness_K: Tensor) -> Tensor:
        """c_i, the weight of each client's model after the later models were mixed in."""
        shares: list[float] = []
        left = 1.0
        for mixed in reversed((self.settings.alpha * self._lowered(staleness_K)).tolist()):
            shares.append(mixed * left)
            left *= 1 - mixed
        return torch.tensor(shares[::-1], dtype=torch.float64)

    def _lowered(self, staleness_K: Tensor) -> Tensor:
        """f(s), 1 for a fresh update."""
        settings = self.settings
        if settings.staleness == "polynomial":
            return polynomial(staleness_K, settings.exponent)
        if settings.staleness == "hinge":
            past_K = (staleness_K.to("cpu", torch.float64) - settings.b).clamp(min=0)
            divisor_K = settings.a_h * past_K + float(settings.hinge_plus_one)
            return torch.where(past_K > 0, 1 / divisor_K.clamp(min=1), 1.0)
        return torch.ones(len(staleness_K), dtype=torch.float64)
