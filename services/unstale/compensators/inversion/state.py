"""The state of inversions.

Legend: d parameters, r reconstructed examples, C classes, B updates inverted together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.network import Parts


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Target:
    """The update that an inversion approximates."""

    base: Parts  # w_b
    update: Parts  # u, in parameter units
    steps: int  # kg, full-batch steps of the local update
    rate: float  # eta_gi
    staleness: int = 0  # of the update, rounds


class State(NamedTuple):
    """Tensors that an iteration changes: of one inversion, or of B inversions with a leading dimension."""

    inputs: Tensor  # x, [r, ...]
    labels: Tensor  # l, [r, C]
    # Adam's mean and square of the gradients in x and in l
    inputs_mean: Tensor
    inputs_square: Tensor
    labels_mean: Tensor
    labels_square: Tensor
    # the last iterate with a finite disparity
    finite_inputs: Tensor
    finite_labels: Tensor
    disparity: Tensor  # D of the iterate before, a scalar; infinite at first

    @classmethod
    def first(cls, start: Reconstruction) -> "State":
        """The state before the first iteration."""
        inputs, labels = start.inputs_rX, start.labels_rC
        zeros = torch.zeros_like(inputs), torch.zeros_like(labels)
        unknown = torch.full((), torch.inf, dtype=inputs.dtype, device=inputs.device)
        return State(inputs, labels, zeros[0], zeros[0], zeros[1], zeros[1], inputs, labels, unknown)

    @classmethod
    def stacked(cls, states: Sequence["State"]) -> Self:
        """The states of B inversions as one."""
        return cls(*map(torch.stack, zip(*states, strict=True)))

    def row(self, index: int) -> "State":
        """A view of the state of one of B inversions."""
        return State(*(tensor_B[index] for tensor_B in self))


class Inversion:
    """The inversion of one update.

    Attributes:
        target: The update.
        iterations: Planned iterations.
        loss_checkpoints: Iterations after which the iterate is kept.
        kept: The iterates after these, by iteration.
        is_warm: The inversion started from an earlier reconstruction of the same client.
        is_too_large: For the device's memory.
        done: Iterations done.
        source: Owner of the state; None for the inversion itself.
    """

    def __init__(
        self,
        *,
        target: Target,
        iterations: int,
        now: Reconstruction,
        loss_checkpoints: tuple[int, ...] = (),
        is_warm: bool = False,
    ) -> None:
        self.target = target
        self.iterations = iterations
        self.loss_checkpoints = loss_checkpoints
        self.is_warm = is_warm
        self.is_too_large = False
        self.kept: dict[int, Reconstruction] = {}
        self.done = 0
        self.state = State.first(now)

    @property
    def state(self) -> State:
        """Not changed by later iterations."""
        return self._read()

    @state.setter
    def state(self, state: State) -> None:
        self._examples = len(state.labels)
        self.source: object | None = None
        self._read: Callable[[], State] = lambda: state

    def read_from(self, source: object, read: Callable[[], State]) -> None:
        """The source changes the state from now on. read: gives it."""
        self.source, self._read = source, read

    @property
    def now(self) -> Reconstruction:
        """The current iterate."""
        state = self.state
        return Reconstruction(inputs_rX=state.inputs, labels_rC=state.labels)

    @now.setter
    def now(self, start: Reconstruction) -> None:
        self.state = State.first(start)

    @property
    def disparity(self) -> Tensor:
        """D of the iterate before `now`, a scalar on the device; infinite at first."""
        return self.state.disparity

    @property
    def is_over(self) -> bool:
        return self.done >= self.iterations

    @property
    def kind(self) -> tuple[int, int]:
        """Inversions of the same kind can be computed together."""
        return self.target.steps, self._examples
