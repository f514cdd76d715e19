"""FedAvg where clients come and go: importance sampling, and at most S updates of a round."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from unstale import seeds
from unstale.errors import UserError
from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import first_rows, on_rows, uniform, weighted_sum

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

    N: all clients of the run, there or not. p: `probabilities`, by client id. The weights sum to 1 on average, not in
    each round.
    Source: FedAR (Jiang et al., 2024), docs/methods/policies.md#fedavg-is; MIFA (Gu et al., NeurIPS 2021),
    docs/methods/policies.md#fedavg-is
    """

    Settings = FedAvgIsSettings
    column_wise = True
    loops = ("availability",)
    memory = "N"
    longest_step = 2.0  # 1 / p with example_settings
    example_settings = MappingProxyType({"probabilities": 0.5})

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


class FedAvgSSettings(PolicySettings):
    size: int = setting(
        50, "S, the most updates of a round that count; not more than the run has clients.", "FedAR paper", ge=1
    )
    wait_for_selected: bool = setting(
        False,
        "Pick S of all clients first, and let rounds pass until each of them has contributed.",
        "ours: the FedAR paper takes available clients; MIFA's code waits",
    )


class FedAvgS(Policy[FedAvgSSettings]):
    """The average of at most S updates of the round, chosen by lot.

        direction_d = (1/|C|) * sum_{i in C} g_i,   C: all K rows when K <= S, else S of them

    With wait_for_selected, C is S of the N clients, picked by lot in the round after a step (and in the first). The
    first update of each is added up; the rounds until the last of them came do not move the model and do not count for
    a schedule of rates. Every such update was computed from the current model, or is as stale as the batch says.

    Draws: `Stream.SELECTION`, keyed by the version. The default S is no more than there are clients.
    Source: FedAR (Jiang et al., 2024), docs/methods/policies.md#fedavg-s; MIFA (Gu et al., NeurIPS 2021),
    docs/methods/policies.md#fedavg-s
    """

    Settings = FedAvgSSettings
    loops = ("availability",)
    memory = "none; d + S ids where it waits"
    reference_defaults = MappingProxyType({"wait_for_selected": True})

    def __init__(self, settings: FedAvgSSettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
        if settings.size > context.clients and "size" in settings.model_fields_set:
            raise UserError(
                f"setting 'size' of policy 'fedavg-s' is {settings.size},"
                f" expected at most the run's number of clients, {context.clients}"
            )
        self._size = min(settings.size, context.clients)
        self._missing: set[int] = set()  # picked, and not seen since
        self._mean_d = torch.zeros(
            self.dimension if settings.wait_for_selected else 0, dtype=torch.float32, device=self.device
        )

    def step(self, batch: UpdateBatch) -> Step:
        if self.settings.wait_for_selected:
            return self._wait(batch)
        rows = len(batch)
        if rows <= self._size:
            return self.weighted(batch, uniform(rows))
        return self.weighted(batch, on_rows(self._draw(batch, rows), 1 / self._size, rows))

    def _wait(self, batch: UpdateBatch) -> Step:
        if not self._missing:
            self._missing = set(self._draw(batch, self.clients))
            self._mean_d.zero_()
        rows = first_rows(batch.client_ids_K, self._missing)
        weights_K = on_rows(rows, 1 / self._size, len(batch))
        if rows:
            self._mean_d.add_(weighted_sum(batch.matrix_Kd, weights_K, out_d=self.result_d))
        if not self._missing:
            return Step(direction_d=self._mean_d, rate_factor=1.0, weights_K=weights_K)
        return Step(direction_d=self.result_d.zero_(), rate_factor=1.0, weights_K=weights_K.zero_(), counts=False)

    def _draw(self, batch: UpdateBatch, among: int) -> list[int]:
        """S of the numbers below `among`, in the order drawn."""
        rng = seeds.stream(self.context.seed, seeds.Stream.SELECTION, batch.version)
        drawn: list[int] = rng.choice(among, size=self._size, replace=False).tolist()
        return drawn

    def state_dict(self) -> dict[str, Any]:
        if not self.settings.wait_for_selected:
            return {}
        return {"missing": sorted(self._missing), "mean_d": self._mean_d.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not self.settings.wait_for_selected:
            super().load_state_dict(state)
            return
        self._missing = set(state["missing"])
        self._mean_d.copy_(state["mean_d"])
