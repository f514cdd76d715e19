"""FedAvg for clients that are not always available: importance sampling, and at most S updates of a round."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import torch
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from unstale import seeds
from unstale.errors import UserError
from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import first_rows, on_rows, uniform, weighted_sum

PROBABILITY_MIN = 1e-6
"""Lower ones are refused: the weight of such a client would exceed all others."""


class FedAvgIsSettings(PolicySettings):
    probabilities: float | tuple[float, ...] = setting(
        ...,
        "p_i, probability that client i is available in a round: one for all or one for each, 1e-6 to 1.",
        "FedAR paper; MIFA's code uses the true ones",
    )


class FedAvgIs(Policy[FedAvgIsSettings]):
    """Divides each update by the availability of its client, so that all clients count the same on average.

        direction_d = (1/N) * sum_i g_i / p_i

    N: all clients of the run, available or not. p: `probabilities`, by client id. The weights sum to 1 on average only.
    Source: FedAR (Jiang et al., 2024), docs/methods/policies.md#fedavg-is; MIFA (Gu et al., NeurIPS 2021),
    docs/methods/policies.md#fedavg-is
    """

    Settings = FedAvgIsSettings
    column_wise = True
    loops = ("availability",)
    memory = "N"
    longest_step = 2.0  # 1 / p for the p of example_settings
    example_settings = MappingProxyType({"probabilities": 0.5})

    def __init__(self, settings: FedAvgIsSettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
        p = settings.probabilities
        p_N = p if isinstance(p, tuple) else (p,) * self.clients
        name = "setting 'probabilities' of policy 'fedavg-is'"
        if len(p_N) != self.clients:
            raise UserError(f"{name} has {len(p_N)} numbers, expected one for each of the {self.clients} clients")
        for client, p_i in enumerate(p_N):
            if not PROBABILITY_MIN <= p_i <= 1:
                where = f" for client {client}" if isinstance(p, tuple) else ""
                raise UserError(f"{name} is {p_i}{where}, expected a number from {PROBABILITY_MIN} to 1")
        self._weights_N = 1 / (self.clients * torch.tensor(p_N, dtype=torch.float64))

    def step(self, batch: UpdateBatch) -> Step:
        return self.weighted(batch, self._weights_N[batch.client_ids_K.cpu()])


class FedAvgSSettings(PolicySettings):
    size: int = setting(
        50, "S, the most updates of a round that count; not more than the run has clients.", "FedAR paper", ge=1
    )
    share: float | None = setting(
        None,
        "Largest share of a round's updates that count, rounded down to at least one; null for no such limit.",
        "ours: the FedAR paper takes at most half of the available clients, 0.5; MIFA's code has no share",
        gt=0,
        le=1,
    )
    wait_for_selected: bool = setting(
        False,
        "Draw S of all clients first, and take no step until each of them has contributed.",
        "ours: the FedAR paper takes available clients; MIFA's code waits",
    )

    @model_validator(mode="after")
    def _share_is_of_a_round(self) -> Self:
        if self.share is not None and self.wait_for_selected:
            raise PydanticCustomError(
                "share",
                "settings 'share' and 'wait_for_selected' are both set, expected one of them: a share is of the "
                "updates of one round, and 'wait_for_selected' collects over rounds",
            )
        return self


class FedAvgS(Policy[FedAvgSSettings]):
    """The average of at most S updates of the round, drawn at random.

        direction_d = (1/|C|) * sum_{i in C} g_i,   |C| = min(S, K), with share min(S, max(1, floor(share * K)))

    With wait_for_selected, C is S of the N clients, drawn in the first round and in each round after a step. The first
    update of each counts. Until the last of them arrives, rounds do not move the model and do not count for a
    learning-rate schedule. So all these updates belong to one model, unless they are stale.

    Draws: `Stream.SELECTION`, keyed by the version. The default S is at most N.
    Source: FedAR (Jiang et al., 2024), docs/methods/policies.md#fedavg-s; MIFA (Gu et al., NeurIPS 2021),
    docs/methods/policies.md#fedavg-s
    """

    Settings = FedAvgSSettings
    loops = ("availability",)
    memory = "none; d + S ids with wait_for_selected"
    reference_defaults = MappingProxyType({"wait_for_selected": True})

    def __init__(self, settings: FedAvgSSettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
        if settings.size > context.clients and "size" in settings.model_fields_set:
            raise UserError(
                f"setting 'size' of policy 'fedavg-s' is {settings.size},"
                f" expected at most the run's number of clients, {context.clients}"
            )
        self._size = min(settings.size, context.clients)
        self._missing: set[int] = set()  # drawn clients without an update so far
        self._mean_d = torch.zeros(  # over C, complete once no client is missing
            self.dimension if settings.wait_for_selected else 0, dtype=torch.float32, device=self.device
        )

    def step(self, batch: UpdateBatch) -> Step:
        if self.settings.wait_for_selected:
            return self._wait(batch)
        rows = len(batch)
        counted = min(rows, self._size, self._largest(rows))
        if rows == counted:
            return self.weighted(batch, uniform(rows))
        return self.weighted(batch, on_rows(self._draw(batch, rows, counted), 1 / counted, rows))

    def _largest(self, rows: int) -> int:
        """How many of these rows the share allows."""
        if self.settings.share is None:
            return rows
        # Rounded first: 0.29 * 100 is 28.999999999999996.
        return max(1, math.floor(round(self.settings.share * rows, 9)))

    def _wait(self, batch: UpdateBatch) -> Step:
        if not self._missing:
            self._missing = set(self._draw(batch, self.clients, self._size))
            self._mean_d.zero_()
        rows = first_rows(batch.client_ids_K, self._missing)
        weights_K = on_rows(rows, 1 / self._size, len(batch))
        if rows:
            self._mean_d.add_(weighted_sum(batch.matrix_Kd, weights_K, out_d=self.result_d))
        if not self._missing:
            return Step(direction_d=self._mean_d, rate_factor=1.0, weights_K=weights_K)
        return Step(direction_d=self.result_d.zero_(), rate_factor=1.0, weights_K=weights_K.zero_(), counts=False)

    def _draw(self, batch: UpdateBatch, count: int, size: int) -> list[int]:
        """So many different numbers from 0 to `count` - 1."""
        rng = seeds.stream(self.context.seed, seeds.Stream.SELECTION, batch.version)
        drawn: list[int] = rng.choice(count, size=size, replace=False).tolist()
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
