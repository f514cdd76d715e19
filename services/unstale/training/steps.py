"""Trainings of several steps: their length, their mini-batches, and the loop.

Legend: d parameters, n examples of the client, b examples of a mini-batch.
"""

from collections.abc import Callable, Iterator, Mapping
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
"""(gradient_d, parameters_d) -> changes gradient_d in place."""

LossFunction = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(number of the step, inputs_bX, labels_b) -> the loss that is reported and the one whose gradient is taken."""


class StepTraining(LocalTraining):
    """A training of k steps, or of E epochs of ceil(n_i / B) steps. Subclasses change the gradient or the loss.

    Each epoch divides a new permutation of the n_i examples into mini-batches; the last one may be short.
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
    def steps_of(self, examples: int) -> int:
        return self.steps or (self.epochs or 0) * ceil(examples / self.batch_size)

    @override
    def batches(self, labels_n: Tensor, rng: Generator) -> list[Tensor]:
        examples = len(labels_n)
        return list(islice(_batches(examples, self.batch_size, rng, labels_n.device), self.steps_of(examples)))

    @override
    def compute(
        self, model: FlatModel, inputs_nX: Tensor, labels_n: Tensor, task: LocalTask, state: Mapping[str, Tensor]
    ) -> LocalUpdate:
        return descend(
            *(model, inputs_nX, labels_n, task),
            weight_decay=self.weight_decay,
            momentum=getattr(self, "momentum", 0.0),  # not every training takes one
            gradient_hook=self.gradient_hook(model, task, state),
            loss_fn=self.loss_fn(model, inputs_nX, task, state),
        )

    def gradient_hook(
        self,
        model: FlatModel,  # noqa: ARG002
        task: LocalTask,  # noqa: ARG002
        state: Mapping[str, Tensor],  # noqa: ARG002
    ) -> GradientHook | None:
        """Changes the gradient of each step; None for no change."""
        return None

    def loss_fn(
        self,
        model: FlatModel,  # noqa: ARG002
        inputs_nX: Tensor,  # noqa: ARG002
        task: LocalTask,  # noqa: ARG002
        state: Mapping[str, Tensor],  # noqa: ARG002
    ) -> LossFunction | None:
        """The loss of each step; None for the mean cross-entropy."""
        return None


def _batches(examples: int, batch_size: int, rng: Generator, device: torch.device) -> Iterator[Tensor]:
    """Infinite mini-batches, each epoch in a new order. One transfer to the device per epoch."""
    while True:
        yield from torch.split(torch.from_numpy(rng.permutation(examples)).to(device), batch_size)


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
    """The update u = w_b - w_end of one step per mini-batch from w_b:

        h <- grad(w) + weight_decay * w;   z <- momentum * z + h   (z = h at first);   w <- w - eta_l * z

    as in `torch.optim.SGD`, on the flat vectors. model: the workspace, afterwards w_end. gradient_hook: called with
    grad(w) and w before weight decay. loss_fn: None for the mean cross-entropy.
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
            loss, minimised = loss_fn(number, inputs_nX.index_select(0, batch_b), labels_n.index_select(0, batch_b))
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
