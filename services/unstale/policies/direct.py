"""Direct aggregation: stale updates are applied as if they were fresh."""

from typing import Literal

import torch

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import add_drift, uniform


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
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/policies.md#direct;
    docs/methods/README.md#updates-and-learning-rates
    """

    Settings = DirectSettings
    loops = ("sync", "k-async")
    memory = "none; live versions for stale_form=model"
    source = "Gradient inversion (Wang & Gao, 2023), docs/methods/policies.md#direct"

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
