"""GSGM: a momentum that averages over all clients, each of which contributes once a cycle."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from unstale.flat import is_finite
from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import first_rows, on_rows


class GsgmSettings(PolicySettings):
    alpha: float = setting(
        0.1,
        "Factor of the momentum, which is added to the round's average.",
        "code released with the WKAFL paper; 0.9 for ByClass and CelebA",
        ge=0,
        le=1e6,
    )
    released: bool = setting(
        False,
        "Follow the released code, in which the momentum never reaches the model.",
        "ours: true is the code released with the WKAFL paper, false its text",
    )


class Gsgm(Policy[GsgmSettings]):
    """The round's average plus a momentum: the average over the last cycle, in which each client counts once.

        direction_d = q = gbar + alpha * M,   gbar = (1/K') * sum_i g_i over the K' clients that are new in this cycle
        A <- A + (K'/N) * q;   when all N clients have contributed:  M <- A, A <- 0, and a new cycle begins

    M, A: [d] float32, zeros at first. Only the first update of a client in a cycle counts; its others weigh 0. A round
    of such others alone ends the cycle without the missing clients, which are presumed gone, and begins the next one.
    An empty round changes nothing. A step with NaN or infinity is not added to A.
    released=True: direction_d = gbar;  A <- A + q/N;  and M <- A, A <- 0 happens before the last round of a cycle, not
    after it: the q of that round is the first in the next A.
    Source: WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/policies-with-memory.md#gsgm
    """

    Settings = GsgmSettings
    loops = ("k-async",)
    memory = "2 d + N flags; updates that wait for the next cycle, at most N d"
    once_a_cycle = True
    reference_defaults = MappingProxyType({"released": True})

    def __init__(self, settings: GsgmSettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
        self._momentum_d = torch.zeros(self.dimension, dtype=torch.float32, device=self.device)
        self._sum_d = torch.zeros_like(self._momentum_d)
        self._missing = self._all_clients()  # those that have not contributed in this cycle

    @torch.no_grad()
    def step(self, batch: UpdateBatch) -> Step:
        rows = self._new_rows(batch)
        count = len(rows)
        is_complete = not self._missing
        if is_complete and self.settings.released:
            self._roll_over()
        step = self.weighted(batch, on_rows(rows, 1 / max(count, 1), len(batch)))
        if count > 0:
            self._accumulate(step, count)
        if is_complete:
            self._missing = self._all_clients()
            if not self.settings.released:
                self._roll_over()
        return step

    def _new_rows(self, batch: UpdateBatch) -> list[int]:
        """The rows that count. Removes their clients from the missing ones; begins a cycle if no row would count."""
        rows = first_rows(batch.client_ids_K, self._missing)
        if not rows and len(batch) > 0:
            self._roll_over()
            self._missing = self._all_clients()
            rows = first_rows(batch.client_ids_K, self._missing)
        return rows

    def _accumulate(self, step: Step, count: int) -> None:
        """Add q to A. Replace the step's direction, gbar, by q unless `released`."""
        alpha = self.settings.alpha
        if not self.settings.released:
            q_d = step.direction_d.add_(self._momentum_d, alpha=alpha)
            if is_finite(q_d):
                self._sum_d.add_(q_d, alpha=count / self.clients)
        elif is_finite(step.direction_d):
            self._sum_d.add_(step.direction_d, alpha=1 / self.clients)
            self._sum_d.add_(self._momentum_d, alpha=alpha / self.clients)

    def _roll_over(self) -> None:
        """M <- A; A <- 0."""
        self._momentum_d, self._sum_d = self._sum_d, self._momentum_d.zero_()

    def _all_clients(self) -> set[int]:
        return set(range(self.clients))

    def state_dict(self) -> dict[str, Any]:
        return {"momentum_d": self._momentum_d.clone(), "sum_d": self._sum_d.clone(), "missing": sorted(self._missing)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._momentum_d.copy_(state["momentum_d"])
        self._sum_d.copy_(state["sum_d"])
        self._missing = set(state["missing"])
