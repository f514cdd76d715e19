"""`ModelSync`: exchanges the parameters of a model that another library trains."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unstale.errors import UserError
from unstale.flat import float_buffers
from unstale.trainers.exchanged import Choice, check_choice, check_same, chosen
from unstale_client import arguments
from unstale_client.client import Client, Task
from unstale_proto import limits


class ModelSync:
    """Loads the parameters of each task into a model, and sends their change after `sync_every` optimiser steps.

    The optimiser, its state and the schedule of learning rates stay as they are: parameters change in place.
    """

    def __init__(self, client: Client, params: Choice, sync_every: int) -> None:
        """Raises UserError."""
        check_choice(params)
        self._client, self._params = client, params
        self._sync_every = arguments.index(sync_every, "sync_every", 1, limits.INTEGER_MAX)
        self._task: Task | None = None
        self._parameters: dict[str, nn.Parameter] = {}
        self._buffers: dict[str, Tensor] = {}
        self._steps = self._batches = self._examples = 0  # since the last exchange
        self._loss: Tensor | float = 0.0  # sum over the batches
        self._learning_rate: float | None = None

    def check(self, model: nn.Module) -> None:
        """Raises UserError if the model has none of the parameters."""
        chosen(model, self._params)

    def start(self, model: nn.Module) -> bool:
        """Wait for a task and load its parameters. Returns whether there is one: False after the end of the run.

        Raises:
            UserError: The server exchanges other parameters.
        """
        model = getattr(model, "module", model) if hasattr(model, "_forward_module") else model  # of Fabric
        self._parameters = chosen(model, self._params)
        self._buffers = dict(float_buffers(model))
        return self._next_task()

    def record(self, loss: Tensor | float, num_examples: int) -> None:
        """Count a batch. loss: its mean."""
        self._loss = self._loss + (loss.detach().float() if isinstance(loss, Tensor) else loss)
        self._batches += 1
        self._examples += num_examples

    def step(self, learning_rate: float | None = None, *, is_last: bool = False) -> bool:
        """Count an optimiser step, whose batches were recorded; with the last of a round, exchange parameters.

        Args:
            learning_rate: Of the step, reported as a metric.
            is_last: Whether the training ends after it, so that no further task is needed.

        Returns:
            Whether the run continues.
        """
        if self._task is None:
            return False
        self._steps += 1
        self._learning_rate = learning_rate
        if self._steps < self._sync_every and not is_last:
            return True
        self._send(self._task)
        return is_last or self._next_task()

    def finish(self) -> None:
        """End the training: send the steps since the last exchange, or give the task back if there are none."""
        if self._task is not None and self._steps:
            self._send(self._task)
        elif self._task is not None:
            self._task.decline("the training has ended")
            self._task = None

    def _reset(self) -> None:
        self._steps = self._batches = self._examples = 0
        self._loss = 0.0

    def _next_task(self) -> bool:
        self._reset()
        self._task = task = next(self._client, None)
        if task is None:
            return False
        check_same(self._parameters, task.parameters, f"the {self._params!r} parameters of the model")
        buffers = {name: buffer for name, buffer in self._buffers.items() if name in task.buffers}
        check_same(buffers, task.buffers, "the float buffers of the model")
        with torch.no_grad():
            for name, array in (*task.parameters.items(), *task.buffers.items()):
                (self._parameters if name in self._parameters else buffers)[name].copy_(torch.tensor(array))
        return True

    def _send(self, task: Task) -> None:
        if not self._batches:
            raise UserError("no batch has a loss, expected a training_step that returns it")
        loss = float(self._loss) / self._batches
        if not math.isfinite(loss):
            raise UserError(
                f"the mean loss of the last {self._examples} examples is {loss}, expected a finite number; lower the "
                "trainer's learning rate"
            )
        delta = {name: _change(task.parameters[name], parameter) for name, parameter in self._parameters.items()}
        if any(change.any() for change in delta.values()):
            task.send_delta(
                delta,
                num_examples=self._examples,
                loss=loss,
                steps=self._steps,
                buffers={name: _array(self._buffers[name]) for name in task.buffers},
                metrics=self._metrics(),
            )
        else:  # the first step of a schedule that warms up, or one that a gradient scaler skipped
            task.decline("the training changed no parameter")
        self._task = None

    def _metrics(self) -> Mapping[str, float]:
        return {} if self._learning_rate is None else {"learning_rate": self._learning_rate}


def _array(tensor: Tensor) -> Any:
    return tensor.detach().to("cpu", torch.float32).numpy()


def _change(base: Any, parameter: nn.Parameter) -> Any:
    """Before the training minus after it; before, the parameter was the base in its own dtype."""
    loaded = base if parameter.dtype is torch.float32 else _array(torch.tensor(base).to(parameter.dtype))
    return np.subtract(loaded, _array(parameter))
