"""GSGM: a momentum that is the average over everyone, so that no client leads twice before all had their turn."""

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
        "What the momentum counts beside the round's average.",
        "code released with the WKAFL paper; 0.9 for ByClass and CelebA",
        ge=0,
        le=1e6,
    )
    released: bool = setting(
        False,
        "Do as the released code does, in which the momentum never reaches the model.",
        "ours: the code released with the WKAFL paper does, its text does not",
    )


class Gsgm(Policy[GsgmSettings]):
    """The average of the round plus a momentum: the average over the last cycle, in which each client counted once.

        direction_d = q = gbar + alpha * M,   gbar = (1/K') * sum_i g_i over the K' clients not yet in this cycle
        A <- A + (K'/N) * q;   when all N clients have contributed:  M <- A, A <- 0, and a new cycle begins

    M, A: [d] float32, zeros at first. Of a client only the first update of a cycle counts; others weigh 0. When a round
    brings nothing but such others, the missing clients are gone: the cycle ends with what there is, and the round
    begins the next one. An empty round changes nothing. A step that float32 does not hold is not added to A.
    released=True: direction_d = gbar;  A <- A + q/N;  and M and A roll over before the last round of a cycle, not
    after it, so that round's q begins the next A.
    Q of the equations is every client but the missing ones.
    Source: WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/policies-with-memory.md#gsgm
    """

    Settings = GsgmSettings
    loops = ("k-async",)
    memory = "2 d + N flags; updates that wait for their cycle, at most N d"
    once_a_cycle = True
    reference_defaults = MappingProxyType({"released": True})

    def __init__(self, settings: GsgmSettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
        self._momentum_d = torch.zeros(self.dimension, dtype=torch.float32, device=self.device)
        self._sum_d = torch.zeros_like(self._momentum_d)
        self._missing = self._everyone()  # clients that have not contributed in this cycle

    @torch.no_grad()
    def step(self, batch: UpdateBatch) -> Step:
        rows = self._take(batch)
        count = len(rows)
        complete = not self._missing
        if complete and self.settings.released:
            self._roll_over()
        step = self.weighted(batch, on_rows(rows, 1 / max(count, 1), len(batch)))
        if count > 0:
            self._accumulate(step, count)
        if complete:
            self._missing = self._everyone()
            if not self.settings.released:
                self._roll_over()
        return step

    def _take(self, batch: UpdateBatch) -> list[int]:
        """The rows that count; they are missing no longer."""
        rows = first_rows(batch.client_ids_K, self._missing)
        if not rows and len(batch) > 0:
            self._roll_over()
            self._missing = self._everyone()
            rows = first_rows(batch.client_ids_K, self._missing)
        return rows

    def _accumulate(self, step: Step, count: int) -> None:
        """Add q to A, and make it the step's direction unless the released code is followed. step: along gbar."""
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

    def _everyone(self) -> set[int]:
        return set(range(self.clients))

    def state_dict(self) -> dict[str, Any]:
        return {"momentum_d": self._momentum_d.clone(), "sum_d": self._sum_d.clone(), "missing": sorted(self._missing)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._momentum_d.copy_(state["momentum_d"])
        self._sum_d.copy_(state["sum_d"])
        self._missing = set(state["missing"])
