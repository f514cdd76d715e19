"""The local trainings: `gradient`, and those of several steps, `sgd`, `fedprox`, `scaffold` and `moon`.

Legend: d parameters, n examples of the client, b (or m) examples of a mini-batch, m different examples of a task, f
numbers of z, the input of the last linear layer.
"""

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import ClassVar, Self

import torch
from pydantic import model_validator
from torch import Tensor
from torch.nn.functional import softplus
from typing_extensions import override

from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.seeds import Generator
from unstale.training.examples import Examples
from unstale.training.initialise import seeded
from unstale.training.local import Countable, Kind, LocalTask, LocalTraining, LocalUpdate, load_base, own_buffers
from unstale.training.models import features
from unstale.training.nests import Nest, forward
from unstale.training.objectives import Objective

GradientHook = Callable[[Tensor, Tensor], object]
"""(gradient_d, parameters_d) -> changes gradient_d in place."""

LossFunction = Callable[[int, Nest, Nest], tuple[Tensor, Tensor]]
"""(number of the step, inputs, targets) -> the loss that is reported and the one whose gradient is taken."""

CONTROL = "control_d"
TRAINED = "trained_d"
TRAINED_BUFFERS = "trained_buffers_b"
_ZERO = 1e-12  # a z that is not longer than this has no direction: its cosine is 0
_FROZEN_BATCH = 512  # examples in one pass through a frozen model; limits the memory


class Gradient(LocalTraining):
    """Sends g_i, the gradient of the loss on one mini-batch at w_b.

        m_i = min(batch_size, n_i), drawn without replacement, independently for each task

    Source: WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/training.md#gradient
    """

    name: ClassVar[str] = "gradient"
    kind: ClassVar[Kind] = "gradient"

    batch_size: int

    @override
    def batches(self, examples: Countable, rng: Generator) -> list[Tensor]:
        count = len(examples)
        drawn_m = rng.choice(count, size=min(self.batch_size, count), replace=False)
        return [torch.from_numpy(drawn_m).to(examples.device)]

    @override
    def batches_in_order(self, examples: int, number: int) -> list[Tensor]:
        return _in_order(examples, number, min(self.batch_size, examples), 1)

    @override
    def compute(self, model: FlatModel, examples: Examples, objective: Objective, task: LocalTask) -> LocalUpdate:
        (batch_m,) = task.batches
        load_base(model, task)
        with seeded(task.seed, model.parameters_d.device):
            inputs, targets = examples.batch(batch_m)
            loss = objective.loss(forward(model.module, inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
        return LocalUpdate(
            vector_d=model.gradient_d.clone(),
            kind=self.kind,
            num_examples=len(examples),
            batch_examples=len(batch_m),
            steps=1,
            loss=loss.item(),
            learning_rate=task.learning_rate,
            buffers_b=own_buffers(model),
        )


def _in_order(examples: int, number: int, batch_size: int, steps: int) -> list[Tensor]:
    """The mini-batches of a task of so many steps, which continues behind the last example of the task before."""
    start = number * steps * batch_size
    return [*torch.split(torch.arange(start, start + steps * batch_size) % examples, batch_size)]


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
    def batches(self, examples: Countable, rng: Generator) -> list[Tensor]:
        batches: list[Tensor] = []
        steps = self.steps_of(len(examples))
        while len(batches) < steps:
            order_n = torch.from_numpy(rng.permutation(len(examples))).to(examples.device)  # one transfer per epoch
            batches.extend(torch.split(order_n, self.batch_size))
        return batches[:steps]

    @override
    def batches_in_order(self, examples: int, number: int) -> list[Tensor]:
        if self.steps is None:
            return [*torch.split(torch.arange(examples), self.batch_size)] * (self.epochs or 0)
        return _in_order(examples, number, min(self.batch_size, examples), self.steps)

    @override
    def compute(self, model: FlatModel, examples: Examples, objective: Objective, task: LocalTask) -> LocalUpdate:
        gradient_hook = self.gradient_hook(model, task)
        loss_of = self.loss_fn(model, examples, objective, task)
        momentum = getattr(self, "momentum", 0.0)  # not every training takes one
        load_base(model, task)
        velocity_d = torch.zeros_like(model.parameters_d) if momentum else None
        reported = []
        with seeded(task.seed, model.parameters_d.device):
            for number, batch_b in enumerate(task.batches):
                model.gradient_d.zero_()
                loss, minimised = loss_of(number, *examples.batch(batch_b))
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
            num_examples=len(examples),
            batch_examples=len(examples),
            steps=len(task.batches),
            loss=sum(torch.stack(reported).tolist()) / len(task.batches),
            learning_rate=task.learning_rate,
            buffers_b=own_buffers(model),
        )

    def gradient_hook(self, model: FlatModel, task: LocalTask) -> GradientHook | None:  # noqa: ARG002
        """Changes the gradient of each step; None for no change."""
        return None

    def loss_fn(
        self,
        model: FlatModel,
        examples: Examples,  # noqa: ARG002
        objective: Objective,
        task: LocalTask,  # noqa: ARG002
    ) -> LossFunction:
        """The loss of each step: that of the objective. May overwrite the workspace."""

        def loss_of(_: int, inputs: Nest, targets: Nest) -> tuple[Tensor, Tensor]:
            loss = objective.loss(forward(model.module, inputs), targets)
            return loss, loss

        return loss_of


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
    def compute(self, model: FlatModel, examples: Examples, objective: Objective, task: LocalTask) -> LocalUpdate:
        update = super().compute(model, examples, objective, task)
        change_d = update.vector_d.div(update.steps * update.learning_rate).sub_(_server_control(model, task))
        return replace(update, extra_d=change_d, state={CONTROL: change_d})


def _server_control(model: FlatModel, task: LocalTask) -> Tensor:
    assert task.extra_d is not None, "scaffold trains with the control variate that its policy sends along"
    return task.extra_d.to(model.parameters_d.device)


class Moon(Sgd):
    """Minimises, in the steps of `sgd`,

        CE + mu * mean(l_con),   l_con = -log( e^(cos(z, z_glob)/T) / (e^(cos(z, z_glob)/T) + e^(cos(z, z_prev)/T)) )

    z, z_glob, z_prev: the input of the last linear layer of the model in training, of w_b, and of the model that this
    client trained in its last accepted task. Only z has a gradient. A client's first task has no w_prev and is `sgd`.
    T: temperature; mu: 5 for CIFAR-10, else 1, in the source.

    The frozen models compute in evaluation mode, as in the released code: without dropout, BatchNorm with their own
    averages. Each computes each example of the task once, before training.
    Source: MOON (Li et al., CVPR 2021), docs/methods/training.md#moon
    """

    name: ClassVar[str] = "moon"
    keeps_state: ClassVar[bool] = True

    mu: float
    temperature: float

    @override
    def compute(self, model: FlatModel, examples: Examples, objective: Objective, task: LocalTask) -> LocalUpdate:
        update = super().compute(model, examples, objective, task)
        kept = {TRAINED: model.parameters_d.clone()}
        if (buffers_b := own_buffers(model)) is not None:
            kept[TRAINED_BUFFERS] = buffers_b
        return replace(update, state=kept)

    @override
    def loss_fn(self, model: FlatModel, examples: Examples, objective: Objective, task: LocalTask) -> LossFunction:
        if self.mu == 0 or TRAINED not in task.state:
            return super().loss_fn(model, examples, objective, task)
        seen_m, places = torch.unique(torch.cat(list(task.batches)), return_inverse=True)
        places_of = torch.split(places, [len(batch_b) for batch_b in task.batches])
        inputs_mX, _ = examples.batch(seen_m)
        model.load(task.state[TRAINED], task.state.get(TRAINED_BUFFERS))
        away_mf = _directions(model, inputs_mX)
        model.load(task.base_d, task.buffers_b)
        # l_con = log(1 + e^x) with x = (cos(z, z_prev) - cos(z, z_glob)) / T = cos(z, away): one product a step.
        away_mf.sub_(_directions(model, inputs_mX)).div_(self.temperature)
        forward_with_z = features(model.module)

        def losses(number: int, inputs_bX: Tensor, labels_b: Tensor) -> tuple[Tensor, Tensor]:
            logits_bC, z_bf = forward_with_z(inputs_bX)
            loss = objective.loss(logits_bC, labels_b)
            away_bf = away_mf.index_select(0, places_of[number])
            return loss, loss + self.mu * softplus(_along(z_bf.flatten(1), away_bf)).mean()

        return losses


@torch.no_grad()
def _directions(model: FlatModel, inputs_mX: Tensor) -> Tensor:
    """z / |z| [m, f] of each example under the model in the workspace, 0 where z is 0."""
    model.module.eval()
    forward_with_z = features(model.module)
    directions = []
    for inputs_bX in torch.split(inputs_mX, _FROZEN_BATCH):
        z_bf = forward_with_z(inputs_bX)[1].flatten(1)
        length_b1 = torch.linalg.vector_norm(z_bf, dim=1, keepdim=True)
        directions.append((z_bf / length_b1).masked_fill(~(length_b1 > _ZERO), 0.0))
    return torch.cat(directions)


def _along(z_bf: Tensor, towards_bf: Tensor) -> Tensor:
    """z . towards / |z| [b], 0 and without a gradient where z is 0."""
    length_b = torch.linalg.vector_norm(z_bf, dim=1)
    is_zero_b = ~(length_b > _ZERO)  # `masked_fill`, unlike `where`, copies no number to a device
    along_b: Tensor = (z_bf * towards_bf).sum(dim=1) / length_b.masked_fill(is_zero_b, 1.0)
    return along_b.masked_fill(is_zero_b, 0.0)
