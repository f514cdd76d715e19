"""Stages around a policy: norm clipping of its updates, and the length or a server optimiser of its step.

A stage is a policy itself, around another one. Legend: K updates of the round, in order of arrival; d parameters.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from unstale.policies import pairwise
from unstale.policies.policy import Policy, PolicySettings, S, Step, UpdateBatch
from unstale.policies.weights import column_chunks, device_weights
from unstale.settings.learning import OptimiserSettings
from unstale.settings.part import value_of

AMPLITUDE_MAX = 1e19
"""Above this a coordinate has no square in float32."""


def wrapped(
    policy: Policy[Any],
    *,
    clip_norm: float | None = None,
    norm: Literal["none", "mean-of-updates"] = "none",
    optimiser: OptimiserSettings | None = None,
) -> Policy[Any]:
    """The policy with norm clipping before it, and the length and the server optimiser of its step after it.

    clip_norm: > 0, in units of the updates; the mean length is that of clipped updates. Without any of them it is the
    policy itself.
    """
    if norm == "mean-of-updates":
        policy = MeanLength(PolicySettings(), policy)
    if clip_norm is not None:
        policy = Clipping(ClippingSettings(clip_norm=clip_norm), policy)
    if optimiser is not None and optimiser.name != "none":
        policy = ServerOptimiser(optimiser, policy)
    return policy


class Stage(Policy[S]):
    """A policy that calls another one, `inner`, and asks of the run what that one asks.

    Its state is the inner policy's, under `inner`, beside the stage's own.
    """

    _SAME = ("loops", "memory", "training", "sends_extra", "once_a_cycle", "needs_base_models", "column_wise")

    def __init__(self, settings: S, inner: Policy[Any]) -> None:
        super().__init__(settings, inner.context)
        self.inner = inner
        for name in self._SAME:
            setattr(self, name, getattr(inner, name))

    @property
    def extra_d(self) -> Tensor | None:
        return self.inner.extra_d

    def give_away(self, direction_d: Tensor) -> bool:
        return super().give_away(direction_d) or self.inner.give_away(direction_d)

    def buffers_change(self, changes_Kb: Tensor, weights_K: Tensor) -> Tensor:
        return self.inner.buffers_change(changes_Kb, weights_K)

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])


class OnHost(Stage[Any]):
    """Lets the inner policy compute on the host, where its memory does not fit the device of the updates.

    Its state is the inner policy's.
    """

    def __init__(self, inner: Policy[Any], device: torch.device) -> None:
        """inner: on the CPU; without second vectors and base models. device: of the updates."""
        assert not (inner.sends_extra or inner.needs_base_models), type(inner).__name__
        super().__init__(inner.settings, inner)
        self.context, self.device = replace(inner.context, device=device), device

    def step(self, batch: UpdateBatch) -> Step:
        step = self.inner.step(replace(batch, matrix_Kd=batch.matrix_Kd.cpu()))
        return replace(step, direction_d=self.result_d.copy_(step.direction_d))

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.inner.load_state_dict(state)


class ClippingSettings(PolicySettings):
    clip_norm: float


class Clipping(Stage[ClippingSettings]):
    """Scales every update that is longer than c down to c, before the inner policy.

        g_i <- g_i * min(1, c / |g_i|)

    c: clip_norm. g: rows of the batch's matrix_Kd, which is not written to: a round in which some row is too long is
    scaled into memory that is kept for the next one, as large as the largest such round; any other round is passed on
    as it is. `extra_Kd` is not clipped.
    """

    is_homogeneous = False

    def __init__(self, settings: ClippingSettings, inner: Policy[Any]) -> None:
        super().__init__(settings, inner)
        self.column_wise = False  # it looks at every row
        self._scaled_Kd = torch.empty(0, self.dimension, device=self.device)

    def step(self, batch: UpdateBatch) -> Step:
        (norms_K,) = _norms(batch.matrix_Kd)
        factors_K = (self.settings.clip_norm / norms_K).clamp(max=1)
        if bool((factors_K < 1).any()):
            batch = replace(batch, matrix_Kd=self._scaled(batch.matrix_Kd, factors_K))
        return self.inner.step(batch)

    def _scaled(self, matrix_Kd: Tensor, factors_K: Tensor) -> Tensor:
        rows = len(matrix_Kd)
        if rows > len(self._scaled_Kd):
            self._scaled_Kd = torch.empty_like(matrix_Kd, memory_format=torch.contiguous_format)
        factors_K = device_weights(factors_K, matrix_Kd.device)
        return torch.mul(matrix_Kd, factors_K[:, None], out=self._scaled_Kd[:rows])


def _norms(*matrices: Tensor) -> list[Tensor]:
    """|g_i| of the rows of each matrix, [K] float64 on the CPU. One wait for the device, unless a norm is huge.

    Chunks of columns are summed in float32, then each other in float64.
    """
    # `sum` adds in a tree; `vector_norm` does not, and is 1e-5 off where all values are equal.
    chunks = [[one[:, chunk].square().sum(dim=1) for chunk in column_chunks(one)] for one in matrices]
    squares = [pairwise.in_order(parts) for parts in pairwise.read(*chunks)]
    for squares_K, matrix_Kd in zip(squares, matrices, strict=True):
        for row in torch.nonzero(torch.isinf(squares_K)).flatten().tolist():  # 1e20 has no square in float32
            squares_K[row] = matrix_Kd[row].to("cpu", torch.float64).square().sum()
    return [squares_K.sqrt() for squares_K in squares]


class MeanLength(Stage[PolicySettings]):
    """Gives the direction D of the inner policy the mean length of the round's updates.

        rate_factor <- rate_factor * (1/K) sum_i |g_i| / |D|

    A D without a direction keeps its length: of 1e-12 at most, not finite, or only rounding errors of its updates. A
    round in which the inner policy only waits is passed on.
    Source: FedHist (Jiang et al., 2023), INA, docs/methods/policies-robust.md#length-of-the-step
    """

    def __init__(self, settings: PolicySettings, inner: Policy[Any]) -> None:
        super().__init__(settings, inner)
        self.column_wise = False  # it looks at every row

    @torch.no_grad()
    def step(self, batch: UpdateBatch) -> Step:
        step = self.inner.step(batch)
        if len(batch) == 0 or not step.counts:
            return step
        lengths_K, length_1 = _norms(batch.matrix_Kd, step.direction_d[None])
        length = float(length_1)
        rounding = pairwise.ROUNDING * float(step.weights_K.abs() @ lengths_K)
        if not max(pairwise.NO_DIRECTION, rounding) < length < math.inf:
            return step
        return replace(step, rate_factor=step.rate_factor * float(lengths_K.mean()) / length)


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
            metrics=step.metrics,
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
