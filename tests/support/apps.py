"""Apps that tests name as `support.apps:...`, with private data: files, which only the client that owns one reads."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

import unstale
from unstale.coordinator import actions, events

FOLDER = "APPS_FOLDER"
"""The variable that names the folder of the clients' files; worker processes of a simulation inherit it."""

STEPS = 3


def table(client_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The examples of a client: 12 of client 0, 8 more of each next one; y = 2 x0 - x1 + 1, and noise."""
    drawn = torch.Generator().manual_seed(100 + client_id)
    inputs = torch.randn(12 + 8 * client_id, 2, generator=drawn)
    noise = torch.randn(len(inputs), 1, generator=drawn)
    return inputs, 2 * inputs[:, :1] - inputs[:, 1:] + 1 + 0.1 * noise


def write_tables(folder: Path, clients: int) -> None:
    for client_id in range(clients):
        inputs, targets = table(client_id)
        np.savez(folder / f"{client_id}.npz", x=inputs.numpy(), y=targets.numpy())


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def with_buffers() -> nn.Module:
    """A BatchNorm has float buffers, and an integer one, which stays with the client."""
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def file_of(client: unstale.ClientInfo) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(Path(os.environ[FOLDER]) / f"{client.client_id}.npz") as stored:
        return torch.from_numpy(stored["x"]), torch.from_numpy(stored["y"])


def descend(module: nn.Module, data: Any, learning_rate: float) -> float:
    """A few steps of gradient descent on all examples; the mean loss before each."""
    inputs, targets = data
    optimiser = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=learning_rate)
    losses = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = mse_loss(module(inputs).float(), targets)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def train(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
    loss = descend(module, data, task.learning_rate)
    task.state["tasks"] = task.state.get("tasks", 0) + 1
    return unstale.Trained(num_examples=len(data[0]), loss=loss, metrics={"tasks": task.state["tasks"]})


def evaluate(module: nn.Module, data: Any) -> unstale.Measured:
    inputs, targets = data
    return unstale.Measured(
        num_examples=len(inputs), metrics={"mae": (module(inputs).float() - targets).abs().mean().item()}
    )


def centrally(module: nn.Module) -> unstale.Measured:
    return evaluate(module, table(1000))


regression = unstale.App(model=model, train=train, data=file_of, evaluate=evaluate, metric="mae")
measured = unstale.App(model=model, train=train, data=file_of, evaluate_centrally=centrally, metric="mae")
normed = unstale.App(model=with_buffers, train=train, data=file_of, evaluate=evaluate)
last_layer = unstale.App(model=model, train=train, data=file_of, exchange=lambda name: name.startswith("2."))


def _half() -> nn.Module:
    class Half(nn.Sequential):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs.bfloat16())

    return Half(*model()).bfloat16()


half = unstale.App(model=_half, train=train, data=file_of, evaluate=evaluate)


def _drawing(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
    """Some of the tasks are declined."""
    if torch.rand(1, generator=task.generator) < 0.3:
        raise unstale.Decline("not now")
    return _half_of_them(module, data, task)


def _half_of_them(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
    kept = torch.randperm(len(data[0]))[: len(data[0]) // 2]
    loss = descend(module, (data[0][kept], data[1][kept]), task.learning_rate)
    task.state.setdefault("seen", []).append(kept)
    return unstale.Trained(num_examples=len(kept), loss=loss)


drawing = unstale.App(model=model, train=_drawing, data=file_of, steps=lambda client: 1 + client.client_id)


def _failing(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
    """Every third task raises."""
    if task.number % 3 == 1:
        raise ValueError("no rows")
    return train(module, data, task)


failing = unstale.App(model=model, train=_failing, data=file_of)


@torch.no_grad()
def _constant(module: nn.Module, _data: Any, _task: unstale.Task) -> unstale.Trained:
    """Sets each number to 1, so that only the first change is not zero."""
    for parameter in module.parameters():
        parameter.fill_(1.0)
    return unstale.Trained(num_examples=1, loss=0.0)


constant = unstale.App(model=lambda: nn.Linear(2, 1), train=_constant)


class _Adapted(nn.Module):
    """A frozen backbone of 66,560 numbers, and an adapter of 515."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, 256), nn.Tanh(), nn.Linear(256, 256)).requires_grad_(False)
        self.down, self.up = nn.Linear(256, 2, bias=False), nn.Linear(2, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.up(self.down(self.backbone(inputs)))


adapted = unstale.App(model=_Adapted, train=train, data=file_of)


def _of_another_file() -> nn.Module:
    module = _Adapted()
    module.backbone[0].bias.data[0] += 1e-6
    return module


adapted_elsewhere = unstale.App(model=_of_another_file, train=train, data=file_of)


def adapted_factory() -> nn.Module:
    return _Adapted()


def _hanging(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
    """Never ends for client 1."""
    if len(data[0]) == len(table(1)[0]):
        threading.Event().wait()
    return train(module, data, task)


hanging = unstale.App(model=model, train=_hanging, data=file_of)


FOUND: list[int] = []
"""Accepted updates of a client of `refused`, before each of its tasks."""


@torch.no_grad()
def _overflow(module: nn.Module) -> None:
    """Makes an update that is rejected: the square of its norm is beyond float32."""
    next(module.parameters()).add_(1e20)


def _refused(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
    """The update of every second task is rejected."""
    FOUND.append(task.state.get("tasks", 0))
    task.state["tasks"] = FOUND[-1] + 1
    loss = descend(module, data, task.learning_rate)
    if task.number % 2:
        _overflow(module)
    return unstale.Trained(num_examples=len(data[0]), loss=loss)


refused = unstale.App(model=model, train=_refused, data=file_of)


shared = unstale.App(
    model=with_buffers,
    train=_half_of_them,
    data=lambda client: table(client.client_id),
    evaluate=evaluate,
    evaluate_centrally=centrally,
    exchange=lambda name: name != "3.bias",
    metric="mae",
)


COUNTED: list[tuple[int, int, int]] = []
"""Of each training of `counting`: client, number of the task, and the counter in its state before."""


def _count(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
    """Counts its accepted updates, and takes smaller steps after each.

    The update of every fourth task is rejected.
    """
    client_id, before = data, task.state.get("accepted", 0)
    COUNTED.append((client_id, task.number, before))
    task.state["accepted"] = before + 1
    loss = descend(module, table(client_id), task.learning_rate / (1 + before))
    if task.number % 4 == 3:
        _overflow(module)
    return unstale.Trained(num_examples=12, loss=loss, metrics={"counter": before + 1})


counting = unstale.App(model=model, train=_count, data=lambda client: client.client_id)


class Accepted:
    """An observer of a run of `counting`."""

    def __init__(self, clients: int) -> None:
        COUNTED.clear()
        self.tasks: list[tuple[int, int]] = []  # client and number of each task whose update was accepted
        self.duplicates = 0
        self._clients = clients

    def __call__(self, _: events.Event, following: Sequence[actions.Action]) -> None:
        for action in following:
            if isinstance(action, actions.Acknowledge):
                self.duplicates += action.outcome is actions.Outcome.DUPLICATE
                if action.outcome is actions.Outcome.ACCEPTED:
                    self.tasks.append((action.client_id, (action.task_id - 1) // self._clients))

    def check(self) -> None:
        """Each training started with the number of the client's earlier tasks whose update was accepted."""
        for client_id, number, before in COUNTED:
            earlier = [task for owner, task in self.tasks if owner == client_id and task < number]
            assert before == len(earlier), (client_id, number, earlier)
