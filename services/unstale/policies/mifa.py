"""MIFA and FedVARP: every client counts in every round, the absent ones by the last update that they sent."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicyContext, PolicySettings, S, Step, UpdateBatch
from unstale.policies.row_memory import RowMemory, host_copy, latest_rows
from unstale.policies.weights import on_rows, uniform, weighted_sum


class _SummedRows(RowMemory):
    """Rows and their sum: sum_d, float64 on the same device, kept up to date by what changes.

    In float64, because what a row adds must leave with it. In float32 each change would leave a rounding error of the
    size of the largest row of its time, for ever: after large rows in the beginning little else.
    """

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.sum_d = torch.zeros(context.dimension, dtype=torch.float64, device=self.device)

    def replace(self, batch: UpdateBatch, latest: dict[int, int]) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """As `exchange`, but gives the sum before the round, [c] float64, not to be kept, and how much it changes."""
        for columns, new_Lc, old_Lc in self.exchange(batch, latest):
            change_c = new_Lc.sum(0, dtype=torch.float64).sub_(old_Lc.sum(0, dtype=torch.float64))
            yield columns, self.sum_d[columns], change_c
            self.sum_d[columns].add_(change_c)


class _RememberedUpdates(Policy[S]):
    """A policy that remembers the last update of every client."""

    def __init__(self, settings: S, context: PolicyContext) -> None:
        super().__init__(settings, context)
        self._memory = _SummedRows(context)

    def state_dict(self) -> dict[str, Any]:
        return {"rows_Nd": host_copy(self._memory.rows_Nd), "sum_d": host_copy(self._memory.sum_d)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._memory.rows_Nd.copy_(state["rows_Nd"])
        self._memory.sum_d.copy_(state["sum_d"])


class MifaSettings(PolicySettings):
    init: Literal["force", "wait", "zeros"] = setting(
        "force",
        "When steps begin: once every client was there; as in the released code, which then has all of them train"
        " again; or at once.",
        "FedAR paper; MIFA's released code: wait, or zeros for its no-wait variant",
    )


class Mifa(_RememberedUpdates[MifaSettings]):
    """The average over all clients of the last update that each of them sent.

        G_i <- g_i for the clients of the round;   direction_d = (1/N) * sum_{i=1..N} G_i

    G: [N, d] float32, zeros at first; of a client that is there twice, the last row. Staleness and examples
    do not matter. Until everyone was there once, rounds pass that do not step and do not count (all updates are still
    from the first model then):
    init="force" remembers their updates, and steps from the round on in which the last client is first seen;
    init="wait" drops them, then fills G anew from everyone, and steps from the round after that;
    init="zeros" steps at once.
    Source: MIFA (Gu et al., NeurIPS 2021), docs/methods/policies-with-memory.md#mifa
    """

    Settings = MifaSettings
    loops = ("availability",)
    memory = "N x d + 2 d + N flags"
    reference_defaults = MappingProxyType({"init": "wait"})

    def __init__(self, settings: MifaSettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
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
        out_d = self._memory.output(self.result_d)
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
        return {**super().state_dict(), "missing": sorted(self._missing), "dropping": self._dropping}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._missing = set(state["missing"])
        self._dropping = bool(state["dropping"])


class FedVarp(_RememberedUpdates[PolicySettings]):
    """The average of everybody's remembered updates, and how much the round's updates differ from their senders'.

        direction_d = ybar + (1/K) * sum_i (g_i - y_i),   ybar = (1/N) * sum_{i=1..N} y_i,   both before the round
        then y_i <- g_i for the clients of the round

    y: [N, d] float32, zeros at first. In an empty round the direction is ybar. Both rows of a client that
    is there twice count; the last is remembered. Staleness and examples do not matter.
    Source: FedVARP (Jhunjhunwala et al., UAI 2022), docs/methods/policies-with-memory.md#fedvarp
    """

    loops = ("availability",)
    memory = "N x d + 2 d"

    @torch.no_grad()
    def step(self, batch: UpdateBatch) -> Step:
        latest = latest_rows(batch.client_ids_K)
        rows = max(len(batch), 1)
        repeated_d = self._repeated(batch, latest)
        out_d = self._memory.output(self.result_d)
        for columns, sum_c, change_c in self._memory.replace(batch, latest):
            out_d[columns] = (sum_c / self.clients).add_(change_c, alpha=1 / rows)
        if repeated_d is not None:
            out_d.add_(repeated_d, alpha=1 / rows)
        return Step(direction_d=self.result_d.copy_(out_d), rate_factor=1.0, weights_K=uniform(len(batch)))

    def _repeated(self, batch: UpdateBatch, latest: dict[int, int]) -> Tensor | None:
        """The sum of g_i - y_i over the rows that are not remembered, [d] float32 beside the memory, or None."""
        repeated = sorted(set(range(len(batch))) - set(latest.values()))
        if not repeated:
            return None
        sum_d = weighted_sum(batch.matrix_Kd, on_rows(repeated, 1.0, len(batch))).to(self._memory.device)
        for client in batch.client_ids_K[repeated].tolist():
            sum_d.sub_(self._memory.rows_Nd[client])
        return sum_d
