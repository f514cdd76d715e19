"""FedVARP: the round's average, corrected by what everybody's remembered updates say about the clients not there."""

from collections.abc import Mapping
from typing import Any

import torch

from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch
from unstale.policies.row_memory import SummedRows, host_like, latest_rows
from unstale.policies.weights import on_rows, uniform, weighted_sum


class FedVarp(Policy[PolicySettings]):
    """The average of everybody's remembered updates, and how much the round's updates differ from their senders'.

        direction_d = ybar + (1/K) * sum_i (g_i - y_i),   ybar = (1/N) * sum_{i=1..N} y_i,   both before the round
        then y_i <- g_i for the clients of the round

    g: rows of updates.matrix_Kd, float32, one device; not written to. y: [N, d] float32 on the host, zeros at first.
    In an empty round the direction is ybar. Both rows of a client that is there twice count; the last is remembered.
    Staleness and examples do not matter.
    Source: FedVARP (Jhunjhunwala et al., UAI 2022), docs/methods/policies-with-memory.md#fedvarp
    """

    loops = ("availability",)
    memory = "N x d + 2 d"
    source = "FedVARP (Jhunjhunwala et al., UAI 2022), docs/methods/policies-with-memory.md#fedvarp"

    def __init__(self, settings: PolicySettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
        self._memory = SummedRows(context)

    @torch.no_grad()
    def step(self, batch: UpdateBatch) -> Step:
        latest = latest_rows(batch.client_ids_K)
        rows = max(len(batch), 1)
        repeated_d = self._repeated(batch, latest)
        out_d = host_like(self.result_d)
        for columns, sum_c, change_c in self._memory.replace(batch, latest):
            out_d[columns] = (sum_c / self.clients).add_(change_c, alpha=1 / rows)
        if repeated_d is not None:
            out_d.add_(repeated_d, alpha=1 / rows)
        return Step(direction_d=self.result_d.copy_(out_d), rate_factor=1.0, weights_K=uniform(len(batch)))

    def _repeated(self, batch: UpdateBatch, latest: dict[int, int]) -> torch.Tensor | None:
        """The sum of g_i - y_i over the rows that are not remembered, [d] float32 on the host; None: there are none."""
        repeated = sorted(set(range(len(batch))) - set(latest.values()))
        if not repeated:
            return None
        sum_d = weighted_sum(batch.matrix_Kd, on_rows(repeated, 1.0, len(batch))).cpu()
        for client in batch.client_ids_K[repeated].tolist():
            sum_d.sub_(self._memory.rows_Nd[client])
        return sum_d

    def state_dict(self) -> dict[str, Any]:
        return {"rows_Nd": self._memory.rows_Nd.clone(), "sum_d": self._memory.sum_d.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._memory.rows_Nd.copy_(state["rows_Nd"])
        self._memory.sum_d.copy_(state["sum_d"])
