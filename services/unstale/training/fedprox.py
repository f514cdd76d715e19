"""Local training `fedprox`: `sgd` that is pulled back to the model it started from.

Legend: d parameters, n examples of the client.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from unstale.flat import FlatModel
from unstale.training.local import LocalTask, LocalUpdate
from unstale.training.sgd import Sgd
from unstale.training.steps import descend


class FedProx(Sgd):
    """Minimises F_i(w) + mu/2 |w - w_b|^2: the steps of `sgd` with

        grad(w) + mu * (w - w_b)   in place of   grad(w)

    The first step, at w_b, is that of `sgd`; so is every step with mu = 0. w_b is the model that the client downloaded,
    stale or not. FedAsync's optional pull is this with mu = 0.005.
    Source: FedProx (Li et al., MLSys 2020), docs/methods/training.md#fedprox
    """

    name: ClassVar[str] = "fedprox"

    mu: float

    def compute(
        self,
        model: FlatModel,
        inputs_nX: Tensor,
        labels_n: Tensor,
        task: LocalTask,
        state: Mapping[str, Tensor],  # noqa: ARG002  (nothing is kept)
    ) -> LocalUpdate:
        """See `LocalTraining.compute`."""
        base_d = task.base_d.to(model.parameters_d.device)
        away_d = torch.empty_like(base_d)

        def pull_back(gradient_d: Tensor, parameters_d: Tensor) -> None:
            torch.sub(parameters_d, base_d, out=away_d)  # first, so that it is exactly 0 at w_b
            gradient_d.add_(away_d, alpha=self.mu)

        return descend(
            *(model, inputs_nX, labels_n, task),
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            gradient_hook=pull_back if self.mu else None,
        )
