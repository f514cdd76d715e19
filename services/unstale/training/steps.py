"""Local trainings of several steps, which send how far they moved: `sgd`, `fedprox` and `scaffold`.

Legend: d parameters, n examples of the client, b examples of a mini-batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
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

CONTROL = "control_d"


class StepTraining(LocalTraining):
    """Sends u = w_b - w_end after k steps, or E epochs of ceil(n_i / B) steps, from w_b:

        h <- grad(w) + weight_decay * w;   z <- momentum * z + h   (z = h at first);   w <- w - eta_l * z

    as in `torch.optim.SGD`, on the flat vectors. Subclasses change the gradient, before weight decay, or the loss.
    Each epoch divides a new permutation of the n_i examples into mini-batches; the last one may be short.
    k is `steps`, E `epochs`, one of which is None, B `batch_size`. Afterwards the workspace is w_end.
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
    def compute(self, model: FlatModel, inputs_nX: Tensor, labels_n: Tensor, task: LocalTask) -> LocalUpdate:
        gradient_hook = self.gradient_hook(model, task)
        loss_of = self.loss_fn(model, inputs_nX, task)
        momentum = getattr(self, "momentum", 0.0)  # not every training takes one
        load_base(model, task)
        velocity_d = torch.zeros_like(model.parameters_d) if momentum else None
        reported = []
        with seeded(task.seed, model.parameters_d.device):
            for number, batch_b in enumerate(task.batches):
                model.gradient_d.zero_()
                loss, minimised = loss_of(number, inputs_nX.index_select(0, batch_b), labels_n.index_select(0, batch_b))
                minimised.backward()  # type: ignore[no-untyped-call]
                reported.append(loss.detach())
                step_d = model.gradient_d
                if gradient_hook is not None:
                    gradient_hook(step_d, model.parameters_d)
                if self.weight_decay:
                    step_d.add_(model.parameters_d, alpha=self.weight_decay)
                if velocity_d is not None:
                    step_d = velocity_d.mul_(momentum).add_(step_d)
                model.parameters_d.add_(step_d, alpha=-task.learning_rate)
        return LocalUpdate(
            vector_d=task.base_d.to(model.parameters_d.device) - model.parameters_d,
            kind=self.kind,
            num_examples=len(labels_n),
            batch_examples=len(labels_n),
            steps=len(task.batches),
            loss=sum(torch.stack(reported).tolist()) / len(task.batches),
            learning_rate=task.learning_rate,
            buffers_b=own_buffers(model),
        )

    def gradient_hook(self, model: FlatModel, task: LocalTask) -> GradientHook | None:  # noqa: ARG002
        """Changes the gradient of each step; None for no change."""
        return None

    def loss_fn(self, model: FlatModel, inputs_nX: Tensor, task: LocalTask) -> LossFunction:  # noqa: ARG002
        """The loss of each step: the mean cross-entropy. May overwrite the workspace."""

        def entropy(_: int, inputs_bX: Tensor, labels_b: Tensor) -> tuple[Tensor, Tensor]:
            loss = cross_entropy(model.module(inputs_bX), labels_b)
            return loss, loss

        return entropy


def _batches(examples: int, batch_size: int, rng: Generator, device: torch.device) -> Iterator[Tensor]:
    """Infinite mini-batches, each epoch in a new order. One transfer to the device per epoch."""
    while True:
        yield from torch.split(torch.from_numpy(rng.permutation(examples)).to(device), batch_size)


class Sgd(StepTraining):
    """The steps of `StepTraining` as they are. Momentum starts at zero in each task."""

    name: ClassVar[str] = "sgd"

    momentum: float


class FedProx(Sgd):
    """Minimises F_i(w) + mu/2 |w - w_b|^2: the steps of `sgd` with

        grad(w) + mu * (w - w_b)   in place of   grad(w)

    The first step, at w_b, equals that of `sgd`; so does every step with mu = 0. w_b is the model that the client
    downloaded, stale or not. FedAsync's optional proximal term is this with mu = 0.005.
    Source: FedProx (Li et al., MLSys 2020), docs/methods/training.md#fedprox
    """

    name: ClassVar[str] = "fedprox"

    mu: float

    @override
    def gradient_hook(self, model: FlatModel, task: LocalTask) -> GradientHook | None:
        if not self.mu:
            return None
        base_d = task.base_d.to(model.parameters_d.device)
        drift_d = torch.empty_like(base_d)

        def pull_back(gradient_d: Tensor, parameters_d: Tensor) -> None:
            torch.sub(parameters_d, base_d, out=drift_d)  # first, so that it is exactly 0 at w_b
            gradient_d.add_(drift_d, alpha=self.mu)

        return pull_back


class Scaffold(StepTraining):
    """k steps from w_b without momentum, then the client's new control variate (option II):

        y <- y - eta_l * (grad(y) - c_i + c)
        u_i = w_b - y;   dc_i = u_i / (k * eta_l) - c;   c_i <- c_i + dc_i;   sends (u_i, dc_i)

    c: the server's control variate as downloaded, `task.extra_d`. dc_i: `extra_d` of the update. c_i: kept by the
    client, 0 at first; dc_i is added to it after the server has accepted the update. grad includes weight decay.
    Source: SCAFFOLD (Karimireddy et al., ICML 2020), docs/methods/training.md#scaffold
    """

    name: ClassVar[str] = "scaffold"
    needs_extra: ClassVar[bool] = True
    keeps_state: ClassVar[bool] = True
    state_adds: ClassVar[bool] = True

    @override
    def gradient_hook(self, model: FlatModel, task: LocalTask) -> GradientHook:
        server_d = _server_control(model, task)
        shift_d = server_d - task.state[CONTROL].to(server_d.device) if CONTROL in task.state else server_d
        return lambda gradient_d, _: gradient_d.add_(shift_d)

    @override
    def compute(self, model: FlatModel, inputs_nX: Tensor, labels_n: Tensor, task: LocalTask) -> LocalUpdate:
        update = super().compute(model, inputs_nX, labels_n, task)
        change_d = update.vector_d.div(update.steps * update.learning_rate).sub_(_server_control(model, task))
        return replace(update, extra_d=change_d, state={CONTROL: change_d})


def _server_control(model: FlatModel, task: LocalTask) -> Tensor:
    assert task.extra_d is not None, "scaffold trains with the control variate that its policy sends along"
    return task.extra_d.to(model.parameters_d.device)
