"""One iteration of gradient inversion: a function of tensors alone, without a value on the host.

Legend: d parameters, r reconstructed examples, C classes, B updates inverted together.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from unstale.compensators.inversion.disparity import DISPARITIES
from unstale.compensators.inversion.settings import InversionSettings
from unstale.compensators.inversion.start import CLAMP
from unstale.compensators.inversion.state import State, Target
from unstale.compensators.network import LABEL_LOSSES, LocalSteps, Network, Parts, local_update

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # Adam's defaults


class Targets(NamedTuple):
    """Targets of B inversions of one kind. Each part is [B, ...]."""

    base: Parts
    update: Parts
    rate_B: Tensor
    steps: int

    @classmethod
    def stacked(cls, targets: Sequence[Target], device: torch.device) -> Self:
        return cls(
            base=tuple(map(torch.stack, zip(*(target.base for target in targets), strict=True))),
            update=tuple(map(torch.stack, zip(*(target.update for target in targets), strict=True))),
            rate_B=torch.tensor([target.rate for target in targets], device=device),
            steps=targets[0].steps,
        )

    @property
    def tensors(self) -> Parts:
        return (*self.base, *self.update, self.rate_B)


class Iteration:
    """The next state of B inversions: one step of Adam on

        D = |LU(w_b; x, l) - u|_1, or another `disparity`

    with x clamped to [-2, 2] after it. An iterate whose D is not finite is replaced by the last one whose D was, and a
    gradient that is not finite causes no step.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
    """

    def __init__(self, network: Network, like: LocalSteps, settings: InversionSettings) -> None:
        self._network = network
        self._like = like
        self._loss = LABEL_LOSSES[settings.label_loss]
        self._distance = DISPARITIES[settings.disparity]
        self._is_low = settings.precision == "bfloat16"
        self._uses_signs = settings.optimiser == "sign-adam"

    def __call__(self, state: State, targets: Targets, factors_3B: Tensor) -> State:
        """The state after an iteration. factors_3B: the learning rate, 1 - beta_1^t and 1 - beta_2^t of each."""
        slopes, disparity_B = self.slopes(state, targets)
        is_number_B = disparity_B.isfinite()
        is_finite_B = is_number_B & _all_finite(slopes[0]) & _all_finite(slopes[1])
        # `torch.where` with a number copies it to the device, and waits.
        inputs_slope, labels_slope = (slope.masked_fill(~_wide(is_finite_B, slope), 0.0) for slope in slopes)
        if self._uses_signs:
            inputs_slope = inputs_slope.sign()
        inputs, *inputs_moments = _adam(state.inputs, inputs_slope, state[2:4], factors_3B)
        labels, *labels_moments = _adam(state.labels, labels_slope, state[4:6], factors_3B)
        finite = _where(is_number_B, (state.inputs, state.labels), state[6:8])
        stepped = _where(is_finite_B, (inputs.clamp_(-CLAMP, CLAMP), labels), finite)
        return State._make((*stepped, *inputs_moments, *labels_moments, *finite, disparity_B))

    def slopes(self, state: State, targets: Targets) -> tuple["_Pair", Tensor]:
        """The gradients of D in x and l, and D, [B]."""
        device = state.inputs.device

        def disparity(inputs_rX: Tensor, labels_rC: Tensor, base: Parts, update: Parts, rate: Tensor) -> Tensor:
            estimate = local_update(
                self._network, base, inputs_rX, labels_rC, rate, steps=targets.steps, like=self._like, loss=self._loss
            )
            return self._distance(estimate, update)

        slopes_of: Callable[..., tuple[_Pair, Tensor]] = vmap(grad_and_value(disparity, argnums=(0, 1)))
        with self._network.in_use(), torch.autocast(device.type, torch.bfloat16, enabled=self._is_low):
            return slopes_of(state.inputs, state.labels, targets.base, targets.update, targets.rate_B)


_Pair = tuple[Tensor, Tensor]
"""Values for x, [B, r, ...], and for l, [B, r, C]."""


def factors(learning_rate: float, done: int) -> tuple[float, float, float]:
    """The learning rate and Adam's corrections of the iteration after `done` others.

    In Python's precision: 1 - 0.999 in float32 is 3e-5 off.
    """
    return learning_rate, 1 - BETA_1 ** (done + 1), 1 - BETA_2 ** (done + 1)


def _adam(
    values_B: Tensor, slope_B: Tensor, moments: Sequence[Tensor], factors_3B: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The values and both moments after one step of Adam."""
    rate_B, *corrections = (_wide(factor_B, values_B) for factor_B in factors_3B)
    mean_B = torch.lerp(moments[0], slope_B, 1 - BETA_1)
    square_B = (moments[1] * BETA_2).addcmul_(slope_B, slope_B, value=1 - BETA_2)
    root = (square_B / corrections[1]).sqrt_().add_(EPSILON)
    return values_B - rate_B * (mean_B / corrections[0]) / root, mean_B, square_B


def _where(is_chosen_B: Tensor, values: Sequence[Tensor], others: Sequence[Tensor]) -> _Pair:
    """`values` for the chosen inversions, `others` for the rest."""
    inputs_BrX = torch.where(_wide(is_chosen_B, values[0]), values[0], others[0])
    return inputs_BrX, torch.where(_wide(is_chosen_B, values[1]), values[1], others[1])


def _wide(numbers_B: Tensor, like: Tensor) -> Tensor:
    return numbers_B.view(-1, *([1] * (like.ndim - 1)))


def _all_finite(values_B: Tensor) -> Tensor:
    return values_B.isfinite().flatten(1).all(1)
