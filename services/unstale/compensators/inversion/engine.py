"""Gradient inversion by optimisation: examples and labels whose local update equals a given update.

Legend: d parameters, r reconstructed examples, C classes, B updates inverted together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.settings import InversionSettings
from unstale.compensators.inversion.start import CLAMP
from unstale.compensators.network import LABEL_LOSSES, LocalSteps, Network, Parts, as_vector, local_update

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # Adam's defaults


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Target:
    """The update that an inversion approximates."""

    base: Parts  # w_b
    update: Parts  # u, in parameter units
    steps: int  # kg, full-batch steps of the local update
    rate: float  # eta_gi
    staleness: int = 0  # of the update, rounds


@dataclass(eq=False, slots=True, kw_only=True)
class Inversion:
    """State of the inversion of one update."""

    target: Target
    iterations: int  # planned
    now: Reconstruction  # the current iterate
    loss_checkpoints: tuple[int, ...] = ()  # iterations after which the iterate is kept, in `kept`
    is_warm: bool = False  # the inversion started from an earlier reconstruction of the same client
    is_too_large: bool = False  # for the device's memory
    kept: dict[int, Reconstruction] = field(default_factory=dict)
    done: int = 0  # iterations done
    # D of the iterate before `now`, a scalar on the device; infinite at first
    disparity: Tensor = field(default_factory=lambda: torch.tensor(torch.inf))
    # Adam's moments, and the last iterate with a finite disparity; None before the first iteration
    adam: "AdamState | None" = None

    @property
    def is_over(self) -> bool:
        return self.done >= self.iterations

    @property
    def kind(self) -> tuple[int, int]:
        """Inversions of the same kind can be computed together."""
        return self.target.steps, len(self.now)


@dataclass(frozen=True, eq=False, slots=True)
class AdamState:
    """Mean and square of the inputs' gradients, then of the labels', and the last iterate with a finite disparity."""

    moments: tuple[Tensor, ...]
    finite: Reconstruction


class Engine:
    """Computes iterations. Keeps only the number of updates that fit into the device's memory together.

        minimise over x, l:  D = |LU(w_b; x, l) - u|_1

    by Adam with a schedule of the rate; x is clamped to [-2, 2] after each step. An iterate whose D is not finite is
    replaced by the last one whose D was, and a gradient that is not finite causes no step.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
    """

    def __init__(self, network: Network, like: LocalSteps, settings: InversionSettings) -> None:
        self._network = network
        self._like = like
        self._settings = settings
        self._loss = LABEL_LOSSES[settings.label_loss]
        self.together = settings.batch_clients

    def iterate(self, inversions: Sequence[Inversion]) -> None:
        """Compute one iteration of each; all are of one kind and not over.

        Halves `together` while the device's memory is too small. Raises OutOfMemoryError if it is too small for one.
        """
        assert len({inversion.kind for inversion in inversions}) == 1, "of several kinds"
        start = 0
        while start < len(inversions):
            group = inversions[start : start + self.together]
            try:
                self._iterate(group)
            except torch.OutOfMemoryError:
                if self.together == 1:
                    raise
                self.together = max(1, min(self.together, len(group)) // 2)
                continue
            start += len(group)

    def _iterate(self, group: Sequence[Inversion]) -> None:
        iterates = _stacked([one.now for one in group])
        slopes, disparity_B = self._slopes(group, *iterates)
        is_number_B = disparity_B.isfinite()
        is_finite_B = is_number_B & _all_finite(slopes[0]) & _all_finite(slopes[1])
        moments = _moments(group, iterates)
        stepped = self._step(group, iterates, _where(is_finite_B, slopes, (0.0, 0.0)), moments)
        finite = _stacked([one.adam.finite if one.adam else one.now for one in group])
        finite = _where(is_number_B, iterates, finite)
        stepped = _where(is_finite_B, stepped, finite)
        for index, one in enumerate(group):
            one.adam = AdamState(tuple(moment_B[index] for moment_B in moments), Reconstruction.row(finite, index))
            one.disparity = disparity_B[index]
            one.now = Reconstruction.row(stepped, index)
            one.done += 1
            if one.done in one.loss_checkpoints:
                one.kept[one.done] = one.now

    def _slopes(self, group: Sequence[Inversion], inputs_BrX: Tensor, labels_BrC: Tensor) -> tuple["_Pair", Tensor]:
        """The gradients of D in x and l, and D, [B]."""
        device = inputs_BrX.device
        targets = [one.target for one in group]
        rate_B = torch.tensor([target.rate for target in targets], device=device)
        base = tuple(map(torch.stack, zip(*(target.base for target in targets), strict=True)))
        update = tuple(map(torch.stack, zip(*(target.update for target in targets), strict=True)))
        steps, is_low = targets[0].steps, self._settings.precision == "bfloat16"

        def disparity(inputs_rX: Tensor, labels_rC: Tensor, base: Parts, update: Parts, rate: Tensor) -> Tensor:
            estimate = local_update(
                self._network, base, inputs_rX, labels_rC, rate, steps=steps, like=self._like, loss=self._loss
            )
            return sum(
                ((u - v).abs().sum() for u, v in zip(estimate, update, strict=True)), torch.zeros((), device=device)
            )

        with self._network.in_use(), torch.autocast(device.type, torch.bfloat16, enabled=is_low):
            slopes, disparity_B = vmap(grad_and_value(disparity, argnums=(0, 1)))(
                inputs_BrX, labels_BrC, base, update, rate_B
            )
        return slopes, disparity_B

    def _step(
        self, group: Sequence[Inversion], iterates: "_Pair", slopes: "_Pair", moments: Sequence[Tensor]
    ) -> "_Pair":
        """The iterates after one step of Adam. Writes to the moments."""
        device = iterates[0].device
        # In Python's precision: 1 - 0.999 in float32 is 3e-5 off.
        corrections = [
            torch.tensor([1 - beta ** (one.done + 1) for one in group], device=device) for beta in (BETA_1, BETA_2)
        ]
        rate_B = torch.tensor([self._rate(one) for one in group], device=device)
        inputs_slope, labels_slope = slopes
        if self._settings.optimiser == "sign-adam":
            inputs_slope = inputs_slope.sign()
        inputs_BrX = _adam(iterates[0], inputs_slope, moments[:2], corrections, rate_B).clamp_(-CLAMP, CLAMP)
        return inputs_BrX, _adam(iterates[1], labels_slope, moments[2:], corrections, rate_B)

    def _rate(self, one: Inversion) -> float:
        settings = self._settings
        if settings.schedule == "steps":
            ends = [int(one.iterations / divisor) for divisor in (2.667, 1.6, 1.142)]
            return float(settings.learning_rate * 0.1 ** sum(one.done >= end for end in ends))
        return settings.learning_rate

    def local_update(self, reconstruction: Reconstruction, start: Parts, steps: int, rate: float) -> Tensor:
        """LU(w; x, l) of a reconstruction, [d], in parameter units. start: w. steps, rate: kg, eta_gi."""
        device = start[0].device
        with self._network.in_use(), torch.no_grad():
            update = local_update(
                self._network,
                start,
                reconstruction.inputs_rX.to(device),
                reconstruction.labels_rC.to(device),
                torch.tensor(rate, device=device),
                steps=steps,
                like=self._like,
                loss=self._loss,
            )
        return as_vector(update)


_Pair = tuple[Tensor, Tensor]
"""Values for x, [B, r, ...], and for l, [B, r, C]."""


def _stacked(reconstructions: Sequence[Reconstruction]) -> _Pair:
    return (
        torch.stack([one.inputs_rX for one in reconstructions]),
        torch.stack([one.labels_rC for one in reconstructions]),
    )


def _adam(
    values_B: Tensor, slope_B: Tensor, moments: Sequence[Tensor], corrections: Sequence[Tensor], rate_B: Tensor
) -> Tensor:
    """The values after one step of Adam. Writes to both moments. corrections: 1 - beta^t of each, [B]."""
    mean_B, square_B = moments
    mean_B.lerp_(slope_B, 1 - BETA_1)
    square_B.mul_(BETA_2).addcmul_(slope_B, slope_B, value=1 - BETA_2)
    corrected = mean_B / _wide(corrections[0], mean_B)
    root = (square_B / _wide(corrections[1], square_B)).sqrt_().add_(EPSILON)
    return values_B - _wide(rate_B, values_B) * corrected / root


def _moments(group: Sequence[Inversion], iterates: _Pair) -> list[Tensor]:
    """Adam's four moments of all inversions, [B, ...]; zero before the first iteration."""
    inputs_rX, labels_rC = (torch.zeros_like(values_B[0]) for values_B in iterates)
    zeros = (inputs_rX, inputs_rX, labels_rC, labels_rC)
    rows = [one.adam.moments if one.adam else zeros for one in group]
    return [torch.stack(moments) for moments in zip(*rows, strict=True)]


def _where(is_chosen_B: Tensor, values: _Pair, others: _Pair | tuple[float, float]) -> _Pair:
    """`values` for the chosen inversions, `others` for the rest."""
    inputs_BrX = torch.where(_wide(is_chosen_B, values[0]), values[0], others[0])
    return inputs_BrX, torch.where(_wide(is_chosen_B, values[1]), values[1], others[1])


def _wide(numbers_B: Tensor, like: Tensor) -> Tensor:
    return numbers_B.view(-1, *([1] * (like.ndim - 1)))


def _all_finite(values_B: Tensor) -> Tensor:
    return values_B.isfinite().flatten(1).all(1)
