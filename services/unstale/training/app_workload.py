"""Trains and evaluates clients by the functions of a user's app.

Legend: d parameters, b numbers of the model's float buffers.
"""

import logging
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from unstale.flat import FlatModel, is_finite
from unstale.seeds import Stream, stream
from unstale.training.app import App, ClientInfo, StatefulApp, Task, Trained, calling, make_module, tensors_of
from unstale.training.client_state import ClientState
from unstale.training.initialise import seeded
from unstale.training.local import LocalUpdate, check_buffers, own_buffers
from unstale.training.measured import (
    NOT_MEASURED,
    Measured,
    NotFiniteError,
    checked_examples,
    checked_loss,
    checked_metrics,
)
from unstale.training.state_codec import pack, unpack
from unstale.training.workload import ClientTask, Declined, FailureLog, TrainingDiverged, TrainingFailed, Workload

log = logging.getLogger("unstale.app")

STATE = "app"
"""Name of an app's state in `ClientState`."""


@dataclass(eq=False, repr=False)
class AppWorkload(Workload):
    """Calls the functions of an app, each client with its own data and state."""

    app: App
    model: FlatModel  # of the app, with the tensors that it exchanges
    clients: int
    seed: int
    _data: dict[int, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.client_state = ClientState()
        self._failures = FailureLog()
        self.keeps_state = True  # so that one process reads the data of a client, and once
        self._first_state = _FirstState(self.model, lambda: make_module(self.app, self.seed))

    @override
    def train(self, task: ClientTask) -> LocalUpdate:
        client_id, number = task.client_id, task.number
        data = self._data_of(client_id)
        seed, own_draws = self._seeds(client_id, number)
        given = Task(
            learning_rate=task.learning_rate,
            version=task.version,
            number=number,
            generator=torch.Generator().manual_seed(seed),
            settings=MappingProxyType(dict(task.settings)),
            state=self._state_of(client_id),
        )
        before_d = self._load(task.base_d, task.buffers_b)
        self.model.module.train()
        with (
            self._failures.failing("the app's train function", client_id),
            torch.enable_grad(),
            self._seeded(own_draws),
        ):
            trained = self.app.train(self.model.module, data, given)
        try:
            update = self._update(trained, before_d, given, client_id)
        except ValueError as error:
            kind = TrainingDiverged if isinstance(error, NotFiniteError) else TrainingFailed
            raise kind(f"the app's train function: {error}") from None
        self.client_state.put(client_id, number, update.state)
        return update

    def _update(self, trained: Any, before_d: Tensor, task: Task, client_id: int) -> LocalUpdate:
        """Raises ValueError for a result that cannot be sent."""
        if not isinstance(trained, Trained):
            raise ValueError(f"it returned a {type(trained).__name__}, expected an unstale.Trained")
        num_examples = checked_examples(trained.num_examples)
        loss, metrics = checked_loss(trained.loss), checked_metrics(trained.metrics)
        self.model.gather()
        vector_d = before_d - self.model.parameters_d
        if not is_finite(vector_d, self.model.buffers_b):
            raise NotFiniteError("it left NaN or infinity in the model, expected finite numbers; use a smaller step")
        had_state = STATE in self.kept(client_id)
        return LocalUpdate(
            vector_d=vector_d,
            kind="delta",
            num_examples=num_examples,
            batch_examples=num_examples,
            steps=self.steps_of(client_id),
            loss=loss,
            learning_rate=task.learning_rate,
            buffers_b=own_buffers(self.model),
            state={STATE: pack(task.state)} if task.state or had_state else {},
            metrics=metrics,
        )

    @override
    def evaluate(self, client_id: int, base_d: Tensor, buffers_b: Tensor | None = None) -> Measured | None:
        evaluate: Callable[..., Measured] | None = self.app.evaluate
        if evaluate is None:
            return None
        own = (self._state_of(client_id),) if isinstance(self.app, StatefulApp) else ()
        try:
            data = self._data_of(client_id)
            self._load(base_d, buffers_b)
            self.model.module.eval()
            with (
                self._failures.failing("the app's evaluate function", client_id),
                torch.no_grad(),
                self._seeded(self._seeds(client_id)[0]),
            ):
                measured = evaluate(self.model.module, data, *own)
            return checked(measured)
        except Declined:
            return None
        except (TrainingFailed, ValueError) as error:
            log.warning("client %d: the app's evaluate function: %s", client_id, error)
            return None

    @override
    def steps_of(self, client_id: int) -> int:
        steps = self.app.steps
        with calling("steps"):
            return max(1, int(steps(self._info(client_id)) if callable(steps) else steps))

    def _info(self, client_id: int) -> ClientInfo:
        return ClientInfo(client_id=client_id, clients=self.clients, seed=self.seed)

    def _data_of(self, client_id: int) -> Any:
        """Raises TrainingFailed for a client without data."""
        if self.app.data is None:
            return None
        if client_id not in self._data:
            with self._failures.failing("the app's data function", client_id), self._seeded(self._seeds(client_id)[0]):
                data = self.app.data(self._info(client_id))
            if data is None:
                raise TrainingFailed(f"the app's data function returned None for client {client_id}, expected its data")
            self._data[client_id] = data
        return self._data[client_id]

    def _state_of(self, client_id: int) -> dict[Any, Any]:
        """A copy of a client's state."""
        kept = self.kept(client_id)
        state: dict[Any, Any] = unpack(kept[STATE]) if STATE in kept else {}
        return state

    def _load(self, base_d: Tensor, buffers_b: Tensor | None) -> Tensor:
        """Load a version into the module. Returns the parameters as the module has them, [d] float32."""
        check_buffers(self.model, buffers_b)
        self._first_state.restore()
        self.model.restore()
        self.model.load(base_d, buffers_b)
        if not self.model.converts:
            return base_d
        self.model.gather()
        return self.model.parameters_d.clone()

    def _seeds(self, *key: int) -> list[int]:
        """Two of a key."""
        draw = stream(self.seed, Stream.BATCHES, *key).bit_generator.random_raw
        return [draw() >> 1, draw() >> 1]  # equal to `integers(2**63, size=2)`, and saves 70 us after a training

    def _seeded(self, seed: int) -> AbstractContextManager[None]:
        """Seeds PyTorch's own draws inside the block."""
        return seeded(seed, self.model.parameters_d.device)


class _FirstState:
    """The parts of a module, and the buffers and trained parameters that are not exchanged, as they were at first."""

    def __init__(self, model: FlatModel, make: Callable[[], nn.Module] | None = None) -> None:
        """make: makes the module again, whose frozen parameters are not copied here; None for a module that is not
        trained.
        """
        exchanged = {name for name, _ in (*model.parameters, *model.buffers)}
        self._make = make
        self._frozen = _frozen(model.module, exchanged)
        self._changes = {name: tensor._version for name, tensor in self._frozen.items()}  # noqa: SLF001  (as below)
        self._parts = [(part, [dict(table) for table in _tables(part)]) for part in model.module.modules()]
        self._tensors = [
            (tensor, tensor.detach().clone())
            for name, tensor in tensors_of(model.module)
            if name not in exchanged and (tensor.requires_grad or not isinstance(tensor, nn.Parameter))
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Make them so again, whatever code of the user has added, removed or replaced."""
        for part, first in self._parts:
            for table, content in zip(_tables(part), first, strict=True):
                table.clear()
                table.update(content)
        for tensor, value in self._tensors:
            tensor.copy_(value)
            tensor.grad = None
        self._restore_frozen()

    def _restore_frozen(self) -> None:
        for tensor in self._frozen.values():
            tensor.requires_grad_(False)
            tensor.grad = None
        changed = [name for name, tensor in self._frozen.items() if tensor._version != self._changes[name]]  # noqa: SLF001
        if not changed or self._make is None:
            return
        first = dict(self._make().named_parameters())
        for name in changed:
            tensor = self._frozen[name]
            tensor.copy_(first[name])
            self._changes[name] = tensor._version  # noqa: SLF001  (PyTorch's count of changes in place)


def _frozen(module: nn.Module, exchanged: Collection[str]) -> dict[str, Tensor]:
    """The frozen parameters by name. exchanged: names of those that are not frozen, whatever code has changed."""
    own = [(name, tensor) for name, tensor in module.named_parameters() if name not in exchanged]
    return {name: tensor for name, tensor in own if not tensor.requires_grad}


def _tables(part: nn.Module) -> tuple[dict[str, Any], ...]:
    """Submodules, parameters and buffers of a module, by name."""
    return part._modules, part._parameters, part._buffers  # noqa: SLF001  (nothing public keeps their order)


def central_evaluation(app: App, model: FlatModel) -> Callable[[Tensor, Tensor], Measured]:
    """A function that evaluates a version on the server; `NOT_MEASURED` if the app cannot, or its function fails.

    Args:
        app: Of the run.
        model: Workspace of the function, in its first state.

    Returns:
        A function of parameters [d] and float buffers [b].
    """
    centrally, first_state = app.evaluate_centrally, _FirstState(model)

    def evaluate(model_d: Tensor, buffers_b: Tensor) -> Measured:
        if centrally is None:
            return NOT_MEASURED
        first_state.restore()
        model.restore()
        try:
            with model.using(model_d, buffers_b), torch.no_grad(), seeded(0, model.buffers_b.device):
                model.module.eval()
                return checked(centrally(model.module))
        except Exception as error:  # any of the user's code; the run continues
            log.warning("the app's evaluate_centrally function: %s: %s", type(error).__name__, error, exc_info=error)
            return NOT_MEASURED

    return evaluate


def checked(measured: Any) -> Measured:
    """An evaluation whose numbers can be sent. Raises ValueError."""
    if not isinstance(measured, Measured):
        raise ValueError(f"it returned a {type(measured).__name__}, expected an unstale.Measured")
    return Measured(num_examples=checked_examples(measured.num_examples), metrics=checked_metrics(measured.metrics))
