"""First-order compensation: DC-ASGD.

Legend: d parameters.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
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
from unstale.part_settings import PartSettings

EPSILON = 1e-7  # of the paper: under the root of the squares' average


class FirstOrderSettings(PartSettings):
    strength: Literal["constant", "adaptive"] = Field(
        "constant",
        description="Whether lambda is the same for all parameters, or follows the size of their gradients.",
        json_schema_extra={"source": "Zheng et al. 2017, DC-ASGD-c and DC-ASGD-a"},
    )
    lambda_u: float = Field(
        4.0,
        ge=0,
        description="For constant: lambda, on updates in parameter units.",
        json_schema_extra={"source": "code released with Wang & Gao"},
    )
    lambda_0: float = Field(
        2.0,
        ge=0,
        description="For adaptive: lambda_0, on the mean gradient of a local step.",
        json_schema_extra={"source": "Zheng et al. 2017"},
    )
    decay: float = Field(
        0.95,
        ge=0,
        lt=1,
        description="For adaptive: how much of the squares' average stays from update to update.",
        json_schema_extra={"source": "Zheng et al. 2017"},
    )
    counts_as_fresh: bool = Field(
        False,
        description="Whether a policy that weighs by staleness takes what was compensated for fresh.",
        json_schema_extra={"source": "ours: the correction is of first order only"},
    )


class FirstOrder(Compensator[FirstOrderSettings]):
    """A stale update follows the model by its own square, an estimate of the curvature's diagonal.

        constant:  u~ = u + lambda_u u*u*(w_t - w_b)                             for s > 0, elementwise
        adaptive:  g~ = g + (lambda_0 / sqrt(MS + 1e-7)) g*g*(w_t - w_b)         g: mean gradient of a local step
                   MS <- decay MS + (1 - decay) g*g                              for every update, fresh or not, before

    u: the update in parameter units, eta_l times the pseudo-gradient. g: the pseudo-gradient over the number of steps.
    MS begins at 0.
    Source: DC-ASGD (Zheng et al., ICML 2017), docs/methods/compensators.md#first-order
    """

    Settings = FirstOrderSettings
    source = "DC-ASGD (Zheng et al., ICML 2017), docs/methods/compensators.md#first-order"
    memory = "live versions; d for strength adaptive"

    def __init__(self, settings: FirstOrderSettings, context: CompensatorContext) -> None:
        super().__init__(settings, context)
        self._squares_d: Tensor | None = None

    def take(self, stale: StaleRound, made: Made) -> Outcome:  # noqa: ARG002  (nothing is made before)
        vectors: dict[int, Tensor] = {}
        updates = []
        gone = [update for update in stale.updates if update.staleness > 0 and update.kept_base_d is None]
        for place, update in enumerate(stale.updates):
            self.note(update)
            if update.staleness == 0 or update.kept_base_d is None:
                updates.append(Compensated())
                continue
            vectors[place] = self.estimate(update, stale.model_d)
            updates.append(Compensated(method="first-order", share=1.0))
        return Outcome(
            vectors=vectors,
            counts_as_fresh=vectors.keys() if self.settings.counts_as_fresh else (),
            updates=updates,
            fallbacks={NO_BASE: len(gone)} if gone else {},
            notes=[WITHOUT_BASE] if gone else [],
        )

    def note(self, update: StaleUpdate) -> None:
        """Take an update into the average of squares, where there is one."""
        if self.settings.strength == "adaptive":
            if self._squares_d is None:
                self._squares_d = torch.zeros_like(update.vector_d)
            g_d = update.vector_d / self._steps(update)
            self._squares_d.mul_(self.settings.decay).addcmul_(g_d, g_d, value=1 - self.settings.decay)

    def estimate(self, update: StaleUpdate, model_d: Tensor) -> Tensor:
        """What the update would be at another model: a pseudo-gradient [d]. model_d: w_t."""
        g_d, drift_d = update.vector_d, model_d - update.base_d
        if self._squares_d is None:
            return g_d + (self.settings.lambda_u * update.local_rate) * g_d * g_d * drift_d
        steps = self._steps(update)
        strength_d = self.settings.lambda_0 / (self._squares_d + EPSILON).sqrt()
        return g_d + strength_d * g_d * g_d * drift_d / steps

    def _steps(self, update: StaleUpdate) -> float:
        """By what a pseudo-gradient is divided to be the mean gradient of a local step."""
        steps, rate = self.context.steps.of(update.num_examples, update.local_rate)
        return steps * rate / update.local_rate

    def state_dict(self) -> dict[str, Any]:
        return {"squares_d": None if self._squares_d is None else self._squares_d.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        squares_d = state["squares_d"]
        self._squares_d = None if squares_d is None else squares_d.to(self.context.device, copy=True)
