"""The interface of local training: a model and a client's own data in, one update out.

Legend: d parameters, n examples of the client, b numbers of the model's float buffers.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from unstale.flat import FlatModel
from unstale.seeds import Generator
from unstale.training.examples import Examples
from unstale.training.objectives import Objective

Kind = Literal["gradient", "delta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTask:
    """The input of one task. Tensors are float32, on any device, and read-only."""

    base_d: Tensor  # [d], w_b
    learning_rate: float  # eta_l, > 0; a `gradient` takes no step and only reports it
    batches: Sequence[Tensor]  # of `LocalTraining.batches`
    seed: int | None  # in [0, 2^63), of PyTorch's own draws, such as dropout; None for a model without draws
    buffers_b: Tensor | None = None  # [b], of the base model; None for a model without buffers
    extra_d: Tensor | None = None  # [d], sent by the policy (SCAFFOLD's c), or None
    # that the client keeps, by name, each [d] or [b]; empty at first
    state: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalUpdate:
    """The result of one task. Tensors are float32 and share no memory with the workspace or the task."""

    # [d]. `gradient`: of the loss of one mini-batch at the base model; `delta`: base - trained, in parameter units
    vector_d: Tensor
    kind: Kind
    num_examples: int  # n_i, of the client
    batch_examples: int  # m_i, size of the mini-batch of a `gradient`, else n_i
    steps: int  # of the optimiser, 1 for a `gradient`
    loss: float  # mean over the steps of the mini-batch loss before the step, without terms of the training
    learning_rate: float  # eta_l
    buffers_b: Tensor | None = None  # [b] after training; None for a model without buffers
    extra_d: Tensor | None = None  # [d], sent with the update (SCAFFOLD's dc_i), or None
    # tensors that the client keeps after this update is accepted, by name; empty for most trainings
    state: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)  # further results, by name


class Countable(Protocol):
    """Examples, as far as mini-batches depend on them. device: of indices."""

    @property
    def device(self) -> torch.device: ...

    def __len__(self) -> int: ...


class LocalTraining(BaseModel, ABC):
    """A local training. Holds settings only; the state of a client is an argument."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]  # in the configuration
    kind: ClassVar[Kind]
    needs_extra: ClassVar[bool] = False  # uses a vector of the policy, and sends one back
    keeps_state: ClassVar[bool] = False  # a client keeps `state` of an accepted update until its next task
    state_adds: ClassVar[bool] = False  # this `state` is added to the kept one instead of replacing it

    @abstractmethod
    def batches(self, examples: Countable, rng: Generator) -> list[Tensor]:
        """The mini-batches of a task in order: indices [b] on the device of the examples.

        examples: all of the client. rng: of `Stream.BATCHES` for this task.
        """

    @abstractmethod
    def batches_in_order(self, examples: int, number: int) -> list[Tensor]:
        """The mini-batches of a task for examples that are read in order: they follow those of the task before.

        examples: n. number: of the client's task, from 0.
        """

    @abstractmethod
    def compute(self, model: FlatModel, examples: Examples, objective: Objective, task: LocalTask) -> LocalUpdate:
        """Train from `task.base_d` on the client's examples, n >= 1, on the device of `model`, which is overwritten."""

    def steps_of(self, examples: int) -> int:  # noqa: ARG002
        """`LocalUpdate.steps` of a client with so many examples."""
        return 1


def load_base(model: FlatModel, task: LocalTask) -> None:
    """Make the workspace the task's base model, in training mode and with a zero gradient."""
    check_buffers(model, task.buffers_b)
    model.load(task.base_d, task.buffers_b)
    if not model.module.training:  # setting it on every layer takes as long as drawing the mini-batch
        model.module.train()
    model.gradient_d.zero_()


def check_buffers(model: FlatModel, buffers_b: Tensor | None) -> None:
    """A version of a model with buffers must come with them, or the workspace would keep those of another one."""
    assert buffers_b is not None or not model.buffers_b.numel(), "this model's buffers go with each version"


def own_buffers(model: FlatModel) -> Tensor | None:
    """A copy of the workspace's float buffers [b]; None for a model without buffers."""
    return model.buffers_b.clone() if model.buffers_b.numel() else None
