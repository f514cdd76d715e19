"""Local training `fedprox`: `sgd` with a proximal term.

Legend: d parameters.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from unstale.flat import FlatModel
from unstale.training.local import LocalTask
from unstale.training.sgd import Sgd
from unstale.training.steps import GradientHook


class FedProx(Sgd):
    """Minimises F_i(w) + mu/2 |w - w_b|^2: the steps of `sgd` with

        grad(w) + mu * (w - w_b)   in place of   grad(w)

    The first step, at w_b, equals that of `sgd`; so does every step with mu = 0. w_b is the model that the client
    downloaded, stale or not. FedAsync's optional proximal term is this with mu = 0.005.
    Source: FedProx (Li et al., MLSys 2020), docs/methods/training.md#fedprox
    """

    name: ClassVar[str] = "fedprox"

    mu: float

    @override
    def gradient_hook(self, model: FlatModel, task: LocalTask, state: Mapping[str, Tensor]) -> GradientHook | None:
        if not self.mu:
            return None
        base_d = task.base_d.to(model.parameters_d.device)
        drift_d = torch.empty_like(base_d)

        def pull_back(gradient_d: Tensor, parameters_d: Tensor) -> None:
            torch.sub(parameters_d, base_d, out=drift_d)  # first, so that it is exactly 0 at w_b
            gradient_d.add_(drift_d, alpha=self.mu)

        return pull_back
