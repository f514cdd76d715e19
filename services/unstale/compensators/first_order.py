"""First-order compensation: DC-ASGD.

Legend: d parameters.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from unstale.compensators.compensator import (
    NO_BASE,
    WITHOUT_BASE,
    Compensated,
    Compensator,
    CompensatorContext,
    Made,
    Outcome,
    StaleRound,
    StaleUpdate,
)
from unstale.part_settings import PartSettings, setting

EPSILON = 1e-7  # of the paper: under the root of the squares' average


class FirstOrderSettings(PartSettings):
    strength: Literal["constant", "adaptive"] = setting(
        "constant",
        "Whether lambda is the same for all parameters, or follows the size of their gradients.",
        "Zheng et al. 2017, DC-ASGD-c and DC-ASGD-a",
    )
    lambda_u: float = setting(
        4.0, "For constant: lambda, on updates in parameter units.", "code released with Wang & Gao", ge=0
    )
    lambda_0: float = setting(
        2.0, "For adaptive: lambda_0, on the mean gradient of a local step.", "Zheng et al. 2017", ge=0
    )
    decay: float = setting(
        0.95, "For adaptive: weight of the previous average of squares at each update.", "Zheng et al. 2017", ge=0, lt=1
    )
    counts_as_fresh: bool = setting(
        False,
        "Whether a policy that weighs by staleness treats compensated updates as fresh.",
        "ours: the correction is of first order only",
    )


class FirstOrder(Compensator[FirstOrderSettings]):
    """Adds a first-order correction: the square of the update estimates the diagonal of the curvature.

        constant:  u~ = u + lambda_u u*u*(w_t - w_b)                             for s > 0, elementwise
        adaptive:  g~ = g + (lambda_0 / sqrt(MS + 1e-7)) g*g*(w_t - w_b)         g: mean gradient of a local step
                   MS <- decay MS + (1 - decay) g*g                              for every update, fresh or not, before

    u: the update in parameter units, eta_l times the pseudo-gradient. g: the pseudo-gradient over the number of steps.
    MS begins at 0.
    Source: DC-ASGD (Zheng et al., ICML 2017), docs/methods/compensators.md#first-order
    """

    Settings = FirstOrderSettings
    memory = "live versions; d for strength adaptive"

    def __init__(self, settings: FirstOrderSettings, context: CompensatorContext) -> None:
        super().__init__(settings, context)
        self._squares_d: Tensor | None = None

    def take(self, stale: StaleRound, made: Made) -> Outcome:  # noqa: ARG002  (`make` does nothing)
        vectors: dict[int, Tensor] = {}
        updates = []
        without_base = 0
        for index, update in enumerate(stale.updates):
            self.note(update)
            compensated = Compensated()
            if update.staleness > 0 and update.kept_base_d is None:
                without_base += 1
            elif update.staleness > 0:
                vectors[index] = self.estimate(update, stale.model_d)
                compensated = Compensated(method="first-order", share=1.0)
            updates.append(compensated)
        return Outcome(
            vectors=vectors,
            counts_as_fresh=vectors.keys() if self.settings.counts_as_fresh else (),
            updates=updates,
            fallbacks={NO_BASE: without_base} if without_base else {},
            notes=[WITHOUT_BASE] if without_base else [],
        )

    def note(self, update: StaleUpdate) -> None:
        """Add an update to the average of squares, for strength `adaptive`."""
        if self.settings.strength == "adaptive":
            if self._squares_d is None:
                self._squares_d = torch.zeros_like(update.vector_d)
            g_d = update.vector_d / self._steps(update)
            self._squares_d.mul_(self.settings.decay).addcmul_(g_d, g_d, value=1 - self.settings.decay)

    def estimate(self, update: StaleUpdate, model_d: Tensor) -> Tensor:
        """The update at another model: a pseudo-gradient [d]. model_d: w_t."""
        g_d, drift_d = update.vector_d, model_d - update.base_d
        if self._squares_d is None:
            return g_d + (self.settings.lambda_u * update.local_rate) * g_d * g_d * drift_d
        steps = self._steps(update)
        strength_d = self.settings.lambda_0 / (self._squares_d + EPSILON).sqrt()
        return g_d + strength_d * g_d * g_d * drift_d / steps

    def _steps(self, update: StaleUpdate) -> float:
        """A pseudo-gradient divided by this is the mean gradient of a local step."""
        steps, rate = self.context.steps.of(update.num_examples, update.local_rate)
        return steps * rate / update.local_rate

    def state_dict(self) -> dict[str, Any]:
        return {"squares_d": None if self._squares_d is None else self._squares_d.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        squares_d = state["squares_d"]
        self._squares_d = None if squares_d is None else squares_d.to(self.context.device, copy=True)
