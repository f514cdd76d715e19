"""What the trainings of several steps share: how long they are, their mini-batches, and the one loop.

Legend: d parameters, n examples of the client, b examples of a mini-batch.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from math import ceil
from typing import ClassVar, Self

import torch
from pydantic import model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.seeds import Generator
from unstale.training.initialise import seeded
from unstale.training.local import Kind, LocalTask, LocalTraining, LocalUpdate, load_base, own_buffers

GradientHook = Callable[[Tensor, Tensor], object]
"""(gradient_d, parameters_d) -> writes into gradient_d what is to be followed in its place."""

LossFunction = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(number of the step, inputs_bX, labels_b) -> the loss that is reported and the one whose gradient is taken."""


class StepTraining(LocalTraining):
    """Settings of every training of k steps, or of E epochs of ceil(n_i / B) steps.

    The mini-batches walk through a permutation of the n_i examples, reshuffled for each epoch; the last short one of an
    epoch is kept.
    k is `steps`, E `epochs`, one of which is None, B `batch_size`.
    Source: docs/methods/training.md#sgd
    """

    kind: ClassVar[Kind] = "delta"

    batch_size: int
    steps: int | None
    epochs: int | None
    weight_decay: float

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if self.steps is None and self.epochs is None:
            raise UserError("training.steps and training.epochs are null, expected a number of one of them")
        return self

    @override
    def steps_of(self, held: int) -> int:
        return self.steps or (self.epochs or 0) * ceil(held / self.batch_size)

    @override
    def batches(self, labels_n: Tensor, rng: Generator) -> list[Tensor]:
        held = len(labels_n)
        return list(islice(_batches(held, self.batch_size, rng, labels_n.device), self.steps_of(held)))


def _batches(held: int, batch_size: int, rng: Generator, device: torch.device) -> Iterator[Tensor]:
    """Mini-batches without end, each epoch in a new order. One transfer to the device an epoch."""
    while True:
        yield from torch.split(torch.from_numpy(rng.permutation(held)).to(device), batch_size)


def descend(
    model: FlatModel,
    inputs_nX: Tensor,
    labels_n: Tensor,
    task: LocalTask,
    *,
    weight_decay: float,
    momentum: float = 0.0,
    gradient_hook: GradientHook | None = None,
    loss_fn: LossFunction | None = None,
) -> LocalUpdate:
    """The update u = w_b - w_end of one step a mini-batch from w_b:

        h <- grad(w) + weight_decay * w;   z <- momentum * z + h   (z = h at first);   w <- w - eta_l * z

    which is `torch.optim.SGD` on the flat vectors. model: the workspace, afterwards w_end. gradient_hook: called with
    grad(w) and w before the rest. loss_fn: None is the mean cross-entropy.
    """

    def entropy(_: int, inputs_bX: Tensor, labels_b: Tensor) -> tuple[Tensor, Tensor]:
        loss = cross_entropy(model.module(inputs_bX), labels_b)
        return loss, loss

    loss_fn = loss_fn or entropy
    load_base(model, task)
    velocity_d = torch.zeros_like(model.parameters_d) if momentum else None
    reported = []
    with seeded(task.seed, model.parameters_d.device):
        for number, batch_b in enumerate(task.batches):
            model.gradient_d.zero_()
            loss, minimised = loss_fn(
                number, inputs_nX.index_select(0, batch_b), labels_n.index_select(0, batch_b)
            )
            minimised.backward()  # type: ignore[no-untyped-call]
            reported.append(loss.detach())
            step_d = model.gradient_d
            if gradient_hook is not None:
                gradient_hook(step_d, model.parameters_d)
            if weight_decay:
                step_d.add_(model.parameters_d, alpha=weight_decay)
            if velocity_d is not None:
                step_d = velocity_d.mul_(momentum).add_(step_d)
            model.parameters_d.add_(step_d, alpha=-task.learning_rate)
    return LocalUpdate(
        vector_d=task.base_d.to(model.parameters_d.device) - model.parameters_d,
        kind="delta",
        num_examples=len(labels_n),
        batch_examples=len(labels_n),
        steps=len(task.batches),
        loss=sum(torch.stack(reported).tolist()) / len(task.batches),
        learning_rate=task.learning_rate,
        buffers_b=own_buffers(model),
    )
