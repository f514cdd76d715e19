"""MIFA: every client counts in every round, the absent ones by the last update that they sent."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch
from unstale.policies.row_memory import SummedRows, host_like, latest_rows
from unstale.policies.weights import on_rows


class MifaSettings(PolicySettings):
    init: Literal["force", "wait", "zeros"] = setting(
        "force",
        "When steps begin: once every client was there; as in the released code, which then has all of them train"
        " again; or at once.",
        "FedAR paper; MIFA's released code: wait, or zeros for its no-wait variant",
    )


class Mifa(Policy[MifaSettings]):
    """The average over all clients of the last update that each of them sent.

        G_i <- g_i for the clients of the round;   direction_d = (1/N) * sum_{i=1..N} G_i

    g: rows of updates.matrix_Kd, float32, one device; not written to. G: [N, d] float32 on the host, zeros at first;
    of a client that is there twice, the last row. Staleness and examples do not matter. Until everyone was there once,
    rounds pass that do not step and do not count (all updates are still from the first model then):
    init="force" remembers their updates, and steps from the round on in which the last client is first seen;
    init="wait" drops them, then fills G anew from everyone, and steps from the round after that;
    init="zeros" steps at once.
    Source: MIFA (Gu et al., NeurIPS 2021), docs/methods/policies-with-memory.md#mifa
    """

    Settings = MifaSettings
    loops = ("availability",)
    memory = "N x d + 2 d + N flags"
    reference_defaults = MappingProxyType({"init": "wait"})
    source = "MIFA (Gu et al., NeurIPS 2021), docs/methods/policies-with-memory.md#mifa"

    def __init__(self, settings: MifaSettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
        self._memory = SummedRows(context)
        self._missing = set() if settings.init == "zeros" else self._everyone()
        self._dropping = settings.init == "wait"

    @torch.no_grad()
    def step(self, batch: UpdateBatch) -> Step:
        latest = latest_rows(batch.client_ids_K)
        if self._dropping:
            self._missing -= latest.keys()
            if not self._missing:
                self._missing, self._dropping = self._everyone(), False
            return self._pass(batch)
        complete = not self._missing
        self._missing -= latest.keys()
        out_d = host_like(self.result_d)
        for columns, sum_c, change_c in self._memory.replace(batch, latest):
            out_d[columns] = (sum_c + change_c).div_(self.clients)
        if self._missing or not (complete or self.settings.init == "force"):
            return self._pass(batch)
        weights_K = on_rows(list(latest.values()), 1 / self.clients, len(batch))
        return Step(direction_d=self.result_d.copy_(out_d), rate_factor=1.0, weights_K=weights_K)

    def _pass(self, batch: UpdateBatch) -> Step:
        """No step: it is only waited."""
        weights_K = torch.zeros(len(batch), dtype=torch.float64)
        return Step(direction_d=self.result_d.zero_(), rate_factor=1.0, weights_K=weights_K, counts=False)

    def _everyone(self) -> set[int]:
        return set(range(self.clients))

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows_Nd": self._memory.rows_Nd.clone(),
            "sum_d": self._memory.sum_d.clone(),
            "missing": sorted(self._missing),
            "dropping": self._dropping,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._memory.rows_Nd.copy_(state["rows_Nd"])
        self._memory.sum_d.copy_(state["sum_d"])
        self._missing = set(state["missing"])
        self._dropping = bool(state["dropping"])
