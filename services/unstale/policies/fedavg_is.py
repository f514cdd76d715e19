"""FedAvg-IS: importance sampling, an update weighed by how rarely its client is there."""

from types import MappingProxyType

import torch

from unstale.errors import UserError
from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch

PROBABILITY_MIN = 1e-6
"""A client that is there more rarely is not there; its weight would drown everybody's."""


class FedAvgIsSettings(PolicySettings):
    probabilities: float | tuple[float, ...] = setting(
        ...,
        "p_i, how likely client i is there in a round: one number for all or one for each, 1e-6 to 1.",
        "FedAR paper; MIFA's code knows the true ones",
    )


class FedAvgIs(Policy[FedAvgIsSettings]):
    """An update weighs as much more as its client is rarer, so that on average every client counts the same.

        direction_d = (1/N) * sum_i g_i / p_i

    N: all clients of the run, there or not. p: `probabilities`, by client id. g: rows of updates.matrix_Kd, float32,
    one device; not written to. The weights sum to 1 on average, not in each round.
    Source: FedAR (Jiang et al., 2024), docs/methods/policies.md#fedavg-is; MIFA (Gu et al., NeurIPS 2021),
    docs/methods/policies.md#fedavg-is
    """

    Settings = FedAvgIsSettings
    column_wise = True
    loops = ("availability",)
    memory = "N"
    longest_step = 2.0  # 1 / p with example_settings
    example_settings = MappingProxyType({"probabilities": 0.5})
    source = (
        "FedAR (Jiang et al., 2024), docs/methods/policies.md#fedavg-is; "
        "MIFA (Gu et al., NeurIPS 2021), docs/methods/policies.md#fedavg-is"
    )

    def __init__(self, settings: FedAvgIsSettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
        given = settings.probabilities
        listed = given if isinstance(given, tuple) else (given,) * self.clients
        setting = "setting 'probabilities' of policy 'fedavg-is'"
        if len(listed) != self.clients:
            raise UserError(
                f"{setting} holds {len(listed)} numbers, expected one for each of the {self.clients} clients"
            )
        for client, probability in enumerate(listed):
            if not PROBABILITY_MIN <= probability <= 1:
                where = f" for client {client}" if isinstance(given, tuple) else ""
                raise UserError(f"{setting} is {probability}{where}, expected a number from {PROBABILITY_MIN} to 1")
        self._weights_N = 1 / (self.clients * torch.tensor(listed, dtype=torch.float64))

    def step(self, batch: UpdateBatch) -> Step:
        return self.weighted(batch, self._weights_N[batch.client_ids_K.cpu()])
