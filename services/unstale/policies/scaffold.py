"""SCAFFOLD: the average of updates that were corrected for their client's drift."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unstale.flat import is_finite
from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import uniform


class Scaffold(Policy[PolicySettings]):
    """The average of updates whose clients corrected every gradient by c - c_i.

        direction_d = (1/K) * sum_i g_i
        c          <- c + (1/N) * sum_i dc_i

    c: the server's control variate, `extra_d`, sent with the model. dc: rows of extra_Kd, what client i added to its
    own c_i. g: rows of matrix_Kd. All float32, one device; not written to. The corrections are in the local training
    `scaffold`. An empty round changes neither; a sum that float32 does not hold leaves c as it is.
    Option II of the paper. Under K-async the K senders are the round, and dc counts when it arrives.
    Source: SCAFFOLD (Karimireddy et al., ICML 2020), docs/methods/policies.md#scaffold
    """

    memory = "d"
    training = "scaffold"
    sends_extra = True

    def __init__(self, settings: PolicySettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
        self._control_d = torch.zeros(self.dimension, dtype=torch.float32, device=self.device)

    @property
    def extra_d(self) -> Tensor:
        return self._control_d

    @torch.no_grad()
    def step(self, batch: UpdateBatch) -> Step:
        if len(batch) > 0:
            assert batch.extra_Kd is not None, "SCAFFOLD's updates came without their second vector"
            shares_K = torch.full((len(batch),), 1 / self.clients, dtype=torch.float32, device=self.device)
            # A new vector: the old one may be on its way to clients while the next round runs.
            control_d = torch.addmv(self._control_d, batch.extra_Kd.T, shares_K)
            if is_finite(control_d):
                self._control_d = control_d
        return self.weighted(batch, uniform(len(batch)))

    def state_dict(self) -> dict[str, Any]:
        return {"control_d": self._control_d.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._control_d = state["control_d"].to(self.device, copy=True)
