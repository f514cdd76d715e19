"""Inverting updates: examples and labels are moved until they would have made them, several updates at a time.

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
from unstale.compensators.local_update import LABEL_LOSSES, LocalSteps, as_vector, local_update
from unstale.compensators.network import Network, Parts

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # Adam's own


@dataclass(eq=False, slots=True, kw_only=True)
class Inversion:
    """One update on its way. base: w_b. update: u, both as parts. steps, rate: kg and eta_gi. iterations: how many
    there will be. done: how many there were. disparity: D at the last iterate but one, a number on the device; infinite
    before. is_warm: whether it began where another one ended. staleness: of the update, rounds. is_too_large: for the
    device's memory. loss_checkpoints: after how many iterations what is reconstructed is kept. finite: the last iterate
    whose disparity was a number; None before the first.
    """

    base: Parts
    update: Parts
    steps: int
    rate: float
    iterations: int
    now: Reconstruction
    is_warm: bool = False
    staleness: int = 0
    is_too_large: bool = False
    loss_checkpoints: tuple[int, ...] = ()
    kept: dict[int, Reconstruction] = field(default_factory=dict)
    done: int = 0
    disparity: Tensor = field(default_factory=lambda: torch.tensor(torch.inf))
    moments: tuple[Tensor, ...] = ()
    finite: Reconstruction | None = None

    @property
    def is_over(self) -> bool:
        return self.done >= self.iterations

    def advance(self, now: Reconstruction) -> None:
        """One more iteration has made `now`."""
        self.now = now
        self.done += 1
        if self.done in self.loss_checkpoints:
            self.kept[self.done] = now

    @property
    def kind(self) -> tuple[int, int]:
        """Those of one kind can be computed together."""
        return self.steps, len(self.now.labels_rC)


class Engine:
    """Does iterations. It keeps nothing between them but how many updates fit into the device's memory at a time.

        minimise over x, l:  D = |LU(w_b; x, l) - u|_1

    by Adam, with the rate's schedule; x is clamped to [-2, 2] after each step. From an iterate whose D is not finite
    it goes back to the last one whose D was, and no step is taken along a gradient that is not.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
    """

    def __init__(self, network: Network, like: LocalSteps, settings: InversionSettings) -> None:
        self._network = network
        self._like = like
        self._settings = settings
        self._loss = LABEL_LOSSES[settings.label_loss]
        self.together = settings.batch_clients

    def iterate(self, inversions: Sequence[Inversion]) -> None:
        """One iteration of each, which are of one kind and not over. Where the device's memory is too small, `together`
        is halved until it is not. Raises OutOfMemoryError when it is too small for one.
        """
        assert len({inversion.kind for inversion in inversions}) == 1, "of several kinds"
        start = 0
        while start < len(inversions):
            some = inversions[start : start + self.together]
            try:
                self._iterate(some)
            except torch.OutOfMemoryError:
                if self.together == 1:
                    raise
                self.together = max(1, min(self.together, len(some)) // 2)
                continue
            start += len(some)

    def _iterate(self, some: Sequence[Inversion]) -> None:
        inputs_BrX = torch.stack([one.now.inputs_rX for one in some])
        labels_BrC = torch.stack([one.now.labels_rC for one in some])
        slopes, disparity_B = self._slopes(some, inputs_BrX, labels_BrC)
        moments = [
            _moment(some, which, values_B[0])
            for which, values_B in enumerate((inputs_BrX, inputs_BrX, labels_BrC, labels_BrC))
        ]
        device = inputs_BrX.device
        # In Python's precision: 1 - 0.999 in float32 is 3e-5 off.
        corrections = [
            torch.tensor([1 - beta ** (one.done + 1) for one in some], device=device)
            for beta in (BETA_1, BETA_2)
        ]
        rate_B = torch.tensor([self._rate(one) for one in some], device=device)
        is_number_B = disparity_B.isfinite()
        finite_B = is_number_B & _all_finite(slopes[0]) & _all_finite(slopes[1])
        inputs_slope, labels_slope = (torch.where(_wide(finite_B, slope), slope, 0.0) for slope in slopes)
        if self._settings.optimiser == "sign-adam":
            inputs_slope = inputs_slope.sign()
        new_inputs = _adam(inputs_BrX, inputs_slope, moments[0], moments[1], corrections, rate_B).clamp_(
            -CLAMP, CLAMP
        )
        new_labels = _adam(labels_BrC, labels_slope, moments[2], moments[3], corrections, rate_B)
        last = [one.now if one.finite is None else one.finite for one in some]
        last_inputs = _where(is_number_B, inputs_BrX, torch.stack([one.inputs_rX for one in last]))
        last_labels = _where(is_number_B, labels_BrC, torch.stack([one.labels_rC for one in last]))
        new_inputs = _where(finite_B, new_inputs, last_inputs)
        new_labels = _where(finite_B, new_labels, last_labels)
        for place, one in enumerate(some):
            one.finite = Reconstruction(inputs_rX=last_inputs[place], labels_rC=last_labels[place])
            one.moments = tuple(moment_B[place] for moment_B in moments)
            one.disparity = disparity_B[place]
            one.advance(Reconstruction(inputs_rX=new_inputs[place], labels_rC=new_labels[place]))

    def _slopes(
        self, some: Sequence[Inversion], inputs_BrX: Tensor, labels_BrC: Tensor
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """The gradients of D in x and l, and D, [B]."""
        device = inputs_BrX.device
        rate_B = torch.tensor([one.rate for one in some], device=device)
        base = tuple(torch.stack(parts) for parts in zip(*(one.base for one in some), strict=True))
        update = tuple(torch.stack(parts) for parts in zip(*(one.update for one in some), strict=True))
        steps, low = some[0].steps, self._settings.precision == "bfloat16"

        def disparity(
            inputs_rX: Tensor, labels_rC: Tensor, base: Parts, update: Parts, rate: Tensor
        ) -> Tensor:
            made = local_update(
                self._network, base, inputs_rX, labels_rC, rate, steps=steps, like=self._like, loss=self._loss
            )
            return sum(
                ((u - v).abs().sum() for u, v in zip(made, update, strict=True)),
                torch.zeros((), device=device),
            )

        with self._network.in_use(), torch.autocast(device.type, torch.bfloat16, enabled=low):
            slopes, disparity_B = vmap(grad_and_value(disparity, argnums=(0, 1)))(
                inputs_BrX, labels_BrC, base, update, rate_B
            )
        return slopes, disparity_B

    def _rate(self, one: Inversion) -> float:
        settings = self._settings
        if settings.schedule == "steps":
            ends = [int(one.iterations / divisor) for divisor in (2.667, 1.6, 1.142)]
            return float(settings.learning_rate * 0.1 ** sum(one.done >= end for end in ends))
        return settings.learning_rate

    def local_update(self, reconstruction: Reconstruction, start: Parts, steps: int, rate: float) -> Tensor:
        """LU(w; x, l) of what is reconstructed, [d], in parameter units. start: w. steps, rate: kg, eta_gi."""
        device = start[0].device
        with self._network.in_use(), torch.no_grad():
            made = local_update(
                self._network,
                start,
                reconstruction.inputs_rX.to(device),
                reconstruction.labels_rC.to(device),
                torch.tensor(rate, device=device),
                steps=steps,
                like=self._like,
                loss=self._loss,
            )
        return as_vector(made)


def _adam(
    values_B: Tensor,
    slope_B: Tensor,
    mean_B: Tensor,
    square_B: Tensor,
    corrections: Sequence[Tensor],
    rate_B: Tensor,
) -> Tensor:
    """The values after one step of Adam; both moments are written to. corrections: 1 - beta^t of each, [B]."""
    mean_B.lerp_(slope_B, 1 - BETA_1)
    square_B.mul_(BETA_2).addcmul_(slope_B, slope_B, value=1 - BETA_2)
    corrected = mean_B / _wide(corrections[0], mean_B)
    root = (square_B / _wide(corrections[1], square_B)).sqrt_().add_(EPSILON)
    return values_B - _wide(rate_B, values_B) * corrected / root


def _moment(some: Sequence[Inversion], which: int, like: Tensor) -> Tensor:
    """One of Adam's moments of all inversions, [B, ...]; zero, of the shape of `like`, before the first iteration."""
    return torch.stack([one.moments[which] if one.done else torch.zeros_like(like) for one in some])


def _where(chosen_B: Tensor, values_B: Tensor, others_B: Tensor) -> Tensor:
    """The values of those inversions that are chosen, and the other values of the rest."""
    return torch.where(_wide(chosen_B, values_B), values_B, others_B)


def _wide(numbers_B: Tensor, like: Tensor) -> Tensor:
    return numbers_B.view(-1, *([1] * (like.ndim - 1)))


def _all_finite(values_B: Tensor) -> Tensor:
    return values_B.isfinite().flatten(1).all(1)
