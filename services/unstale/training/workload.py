"""The interface of all computation of clients, for client processes and simulations.

Legend: d parameters, b numbers of the model's float buffers.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from unstale.flat import FlatModel
from unstale.training.client_state import ClientState
from unstale.training.local import LocalUpdate
from unstale.training.measured import Measured

log = logging.getLogger("unstale.training")


class NotTrained(Exception):  # noqa: N818  (an outcome of a task)
    """A task has no update; the client gives it back. str: the cause, one sentence for people."""

    is_code_error: ClassVar[bool] = False  # whether the user's code is the cause


class Declined(NotTrained):
    """The client skips this round."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class TrainingFailed(NotTrained):
    """The training raised, or its result cannot be sent."""

    is_code_error = True

    def __init__(self, message: str) -> None:
        super().__init__(message)


class TrainingDiverged(TrainingFailed):
    """The training ended with NaN or infinity."""

    is_code_error = False


def described(error: Exception) -> str:
    """Class and message of an exception, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class FailureLog:
    """Logs exceptions of the user's code, with the traceback where the message is new."""

    MESSAGES_MAX = 1000  # that it remembers

    def __init__(self) -> None:
        self._messages: set[str] = set()

    @contextmanager
    def failing(self, code: str, client_id: int, passes: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Logs an exception of the block, and raises TrainingFailed.

        code: its name, for messages. passes: exceptions that pass, as NotTrained does.
        """
        try:
            yield
        except NotTrained:
            raise
        except passes:
            raise
        except Exception as error:
            message = described(error)
            if message in self._messages:
                log.debug("client %d: %s raised again: %s", client_id, code, message)
            else:
                log.warning("client %d: %s raised an exception", client_id, code, exc_info=error)
                if len(self._messages) < self.MESSAGES_MAX:
                    self._messages.add(message)
            raise TrainingFailed(f"{code}: {message}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTask:
    """A task of a client. Tensors are float32, on any device, and read-only."""

    client_id: int
    number: int  # of the client's tasks, from 0
    version: int  # of the base model
    base_d: Tensor  # [d], w_b
    learning_rate: float  # eta_l, > 0
    buffers_b: Tensor | None = None  # [b], of the base model; None for a model without buffers
    extra_d: Tensor | None = None  # [d], sent by the policy (SCAFFOLD's c), or None
    settings: Mapping[str, float | int | str] = field(default_factory=dict)  # that the server sends to clients


class Workload(ABC):
    """Trains and evaluates any of the clients of a run, and keeps their state. One thread at a time.

    An update depends on its task and its client's state only, not on earlier tasks.
    """

    model: FlatModel  # the exchanged tensors; the workspace of every computation
    client_state: ClientState
    keeps_state: bool  # whether a client may keep state from task to task
    needs_extra: bool = False  # whether a task has `extra_d`, and its update sends another one back

    @abstractmethod
    def train(self, task: ClientTask) -> LocalUpdate:
        """The update of a task. Stores its state until the verdict on it, which the caller reports by `keep` or `drop`.

        Raises Declined or TrainingFailed where there is none.
        """

    def train_each(self, tasks: Iterable[ClientTask]) -> Iterator[LocalUpdate | NotTrained]:
        """The updates of tasks of different clients, in order; the exception in place of an update that there is not.

        Each task is trained when its update is requested. Random numbers of all tasks may be drawn first.
        """
        for task in tasks:
            yield self.outcome(task)

    def outcome(self, task: ClientTask) -> LocalUpdate | NotTrained:
        """As `train`, but returns the exception instead of raising it."""
        try:
            return self.train(task)
        except NotTrained as error:
            return error

    @abstractmethod
    def evaluate(self, client_id: int, base_d: Tensor, buffers_b: Tensor | None = None) -> Measured | None:
        """Evaluate a model on the client's own test examples; None if it has none."""

    @abstractmethod
    def steps_of(self, client_id: int) -> int:
        """Work of each of a client's tasks, in optimiser steps: determines the time that it takes on a device."""

    def keep(self, client_id: int, number: int) -> bool:
        """As `ClientState.keep`."""
        return self.client_state.keep(client_id, number)

    def drop(self, client_id: int, number: int) -> None:
        """As `ClientState.drop`."""
        self.client_state.drop(client_id, number)

    def kept(self, client_id: int) -> Mapping[str, Tensor]:
        """As `ClientState.kept`."""
        return self.client_state.kept(client_id)

    def restore(self, client_id: int, kept: Mapping[str, Tensor], pending: Mapping[int, Mapping[str, Tensor]]) -> None:
        """As `ClientState.restore`."""
        self.client_state.restore(client_id, kept, pending)
