"""The interface of local training: a model and a client's own data in, one update out.

Legend: d parameters, n examples of the client, b numbers of the model's float buffers.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from unstale.flat import FlatModel
from unstale.seeds import Generator

Kind = Literal["gradient", "delta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTask:
    """What one task starts from. Its tensors are float32, on any device, and not written to.

    base_d: [d], w_b. buffers_b: [b], the base model's; None where the model has none. extra_d: [d], what the policy
    sends along (SCAFFOLD's c), None where it sends nothing. learning_rate: eta_l, > 0; a `gradient` takes no step and
    only reports it. batches: what `LocalTraining.batches` drew for it. seed: in [0, 2^63), for what PyTorch draws
    inside, such as dropout; None where the model is known to draw nothing. version: number of the base version, which
    decides what the client holds where data changes; else it may be None.
    """

    base_d: Tensor
    learning_rate: float
    batches: Sequence[Tensor]
    seed: int | None
    buffers_b: Tensor | None = None
    extra_d: Tensor | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalUpdate:
    """What one task made. Tensors are float32 and share no memory with the workspace or the task.

    vector_d: [d]. `gradient`: of the mean cross-entropy of one mini-batch at the base model; `delta`: base - trained,
        in parameter units.
    num_examples: n_i, examples the client holds. batch_examples: m_i, size of the mini-batch of a `gradient`, else n_i.
        steps: optimiser steps taken, 1 for a `gradient`. loss: mean over the steps of the mini-batch cross-entropy
        before the step, without the term that a training adds to it. learning_rate: eta_l.
    buffers_b: [b] after training, None where the model has none. extra_d: [d], what is sent along (SCAFFOLD's dc_i), or
        None. state: what the client keeps, by name, once this update is accepted; empty for most trainings.
    """

    vector_d: Tensor
    kind: Kind
    num_examples: int
    batch_examples: int
    steps: int
    loss: float
    learning_rate: float
    buffers_b: Tensor | None = None
    extra_d: Tensor | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)


class LocalTraining(BaseModel, ABC):
    """One way to train. Holds settings only: what stays on a client between tasks is an argument.

    name: it is registered under. needs_extra: it trains with a vector that the policy sends along, and sends one back.
    keeps_state: a client keeps something from one accepted update to its next task. state_adds: an accepted update's
    `state` is added to what the client has, in place of replacing it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    kind: ClassVar[Kind]
    needs_extra: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    state_adds: ClassVar[bool] = False

    @abstractmethod
    def batches(self, labels_n: Tensor, rng: Generator) -> list[Tensor]:
        """The mini-batches of a task in order: indices [b] on the device of `labels_n`.

        labels_n: [n] int64, of all the client's examples. rng: the client's stream `Stream.BATCHES` for this task.
        """

    @abstractmethod
    def compute(
        self,
        model: FlatModel,
        inputs_nX: Tensor,
        labels_n: Tensor,
        task: LocalTask,
        state: Mapping[str, Tensor],
    ) -> LocalUpdate:
        """Train from `task.base_d` on the client's examples; `model` is the workspace and is overwritten.

        inputs_nX: [n, ...] float32 and labels_n: [n] int64, n >= 1, on the model's device. state: what this client has
        kept, each [d] or [b] float32 on any device, empty at first; not written to.
        """

    def steps_of(self, held: int) -> int:  # noqa: ARG002  (one mini-batch, whatever there is)
        """Optimiser steps of a task of a client that holds so many examples: `LocalUpdate.steps`, known before."""
        return 1


def load_base(model: FlatModel, task: LocalTask) -> None:
    """Make the workspace the task's base model, in training mode and with a zero gradient."""
    check_buffers(model, task.buffers_b)
    model.load(task.base_d, task.buffers_b)
    if not model.module.training:  # to say it to every layer takes as long as drawing the mini-batch
        model.module.train()
    model.gradient_d.zero_()


def check_buffers(model: FlatModel, buffers_b: Tensor | None) -> None:
    """A version of a model that has buffers comes with them; else what the workspace was used for before would show."""
    assert buffers_b is not None or not model.buffers_b.numel(), "this model's buffers go with each version"


def own_buffers(model: FlatModel) -> Tensor | None:
    """A copy of the workspace's float buffers [b], None where the model has none."""
    return model.buffers_b.clone() if model.buffers_b.numel() else None
