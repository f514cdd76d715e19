"""Server optimisers: the policy's step goes through momentum, Adam or Yogi before the model takes it.

Legend: d parameters.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unstale.policies.policy import Policy, Step, UpdateBatch
from unstale.policies.stages.stage import Stage
from unstale.settings.learning import OptimiserSettings
from unstale.settings.part import value_of

AMPLITUDE_MAX = 1e19
"""Above this a coordinate has no square in float32."""


class ServerOptimiser(Stage[OptimiserSettings]):
    """What the model takes instead of the inner policy's step D = rate * rate_factor * direction.

        momentum:  m <- beta1 m + D;                 w <- w - lr m
        adam:      m <- beta1 m + (1 - beta1) D;     w <- w - lr m / (sqrt(v) + tau)
                   v <- beta2 v + (1 - beta2) D^2
        yogi:      as adam, with  v <- v - (1 - beta2) D^2 sign(v - D^2)

    from m = 0, v = tau^2, without bias correction. D: parameter units, [d]. lr: learning_rate. tau: epsilon.
    A round in which the inner policy moves nothing, or only waits, leaves model and optimiser as they are: no momentum
    is spent on it. So does a D beyond 1e19, whose squares float32 does not hold: its step is not finite, and the
    learner refuses it.
    Algorithm 2 of the paper has Delta for -D and eta for lr; momentum is FedAvgM's.
    Source: FedOpt (Reddi et al., ICLR 2021), docs/methods/policies-robust.md#server-optimisers; FedAvgM (Hsu et al.,
    2019), docs/methods/policies-robust.md#server-optimisers
    """

    def __init__(self, settings: OptimiserSettings, inner: Policy[Any]) -> None:
        assert settings.name != "none"
        super().__init__(settings, inner)
        self._learning_rate: float = value_of(settings, "learning_rate")
        self._momentum_d = torch.zeros(self.dimension, device=self.device)
        self._squares_d: Tensor | None = None
        if settings.name != "momentum":
            self._squares_d = torch.full((self.dimension,), settings.epsilon**2, device=self.device)

    @torch.no_grad()
    def step(self, batch: UpdateBatch) -> Step:
        step = self.inner.step(batch)
        scale = batch.rate * step.rate_factor
        amplitude = abs(scale) * float(torch.linalg.vector_norm(step.direction_d, math.inf))
        if amplitude == 0 or not step.counts:
            return step
        if not amplitude < AMPLITUDE_MAX:
            direction_d = self.result_d.fill_(math.inf)
        else:
            direction_d = self._momentum(step.direction_d, scale)
        return Step(
            direction_d=direction_d,
            rate_factor=self._learning_rate / batch.rate,
            weights_K=step.weights_K,
            counts=step.counts,
        )

    def _momentum(self, direction_d: Tensor, scale: float) -> Tensor:
        """The optimiser's own direction after one more D = scale * direction."""
        settings, squares_d = self.settings, self._squares_d
        if squares_d is None:
            return self._momentum_d.mul_(settings.beta1).add_(direction_d, alpha=scale)
        self._momentum_d.mul_(settings.beta1).add_(direction_d, alpha=scale * (1 - settings.beta1))
        root_d = torch.mul(direction_d, scale, out=self.result_d)
        if settings.name == "adam":
            squares_d.mul_(settings.beta2).addcmul_(root_d, root_d, value=1 - settings.beta2)
        else:
            square_d = root_d.mul_(root_d)
            squares_d.addcmul_(square_d, torch.sign(squares_d - square_d), value=settings.beta2 - 1)
        torch.sqrt(squares_d, out=root_d).add_(settings.epsilon)
        return torch.div(self._momentum_d, root_d, out=root_d)

    def state_dict(self) -> dict[str, Any]:
        squares_d = None if self._squares_d is None else self._squares_d.clone()
        return {**super().state_dict(), "momentum_d": self._momentum_d.clone(), "squares_d": squares_d}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._momentum_d.copy_(state["momentum_d"])
        if self._squares_d is not None:
            self._squares_d.copy_(state["squares_d"])
