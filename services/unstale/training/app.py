"""A user's own model, data, training and metrics: an `App`, and the values that its functions take and return."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unstale.errors import UserError
from unstale.flat import EXCHANGED, float_buffers
from unstale.training.initialise import seeded
from unstale.training.measured import METRIC_NAME, MainMetric, Measured
from unstale.training.workload import Declined, described

log = logging.getLogger("unstale.app")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientInfo:
    """The client for which an app reads data."""

    client_id: int  # from 0
    clients: int  # of the run
    seed: int  # of the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of a client, for the training function of an app."""

    learning_rate: float
    version: int  # of the model that the client trains
    number: int  # of the client's tasks, from 0
    generator: torch.Generator  # on the CPU, seeded for this task; so are PyTorch's own draws
    settings: Mapping[str, float | int | str]  # that the server sends to clients: `client_settings`
    state: MutableMapping[Any, Any]  # of this client, after all of its accepted updates; changed when this one is


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Result of a training. The trained model itself is read from the module."""

    num_examples: int
    loss: float  # mean over the training
    metrics: Mapping[str, float] = field(default_factory=dict)  # up to 32 names of a-z0-9_./-


class Decline(Declined):
    """Raised by a training function to skip the round. str: the reason."""


Selection = Collection[str] | Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A user's own model, data, training and metrics.

    Parameters and buffers that are not exchanged begin each task as `model` made them; `task.state` keeps others.
    """

    model: Callable[[], nn.Module]  # the same one on each call and machine
    train: Callable[[nn.Module, Any, Task], Trained]  # trains the module, with the client's data
    data: Callable[[ClientInfo], Any] | None = None  # called once for each client, on its own machine only
    evaluate: Callable[[nn.Module, Any], Measured] | None = None  # on the client's data
    evaluate_centrally: Callable[[nn.Module], Measured] | None = None  # on the server
    exchange: Selection | None = None  # names, or a function that chooses names; None for all that is trained
    metric: str | None = None  # that a run shows first; None for the loss
    higher_is_better: bool = False  # of `metric`
    steps: int | Callable[[ClientInfo], int] = 1  # work of a task, for the time that it takes on a simulated device

    def __post_init__(self) -> None:
        if isinstance(self.model, nn.Module):
            raise UserError(
                f"unstale.App: model is a {type(self.model).__name__} that was made already, expected the class, or a "
                "function that makes it, such as lambda: ..."
            )
        for name in ("model", "train", "data", "evaluate", "evaluate_centrally"):
            value = getattr(self, name)
            if not callable(value) and (value is not None or name in ("model", "train")):
                raise UserError(f"unstale.App: {name} is {value!r:.80}, expected a function")
        self._check_values()

    def _check_values(self) -> None:
        if self.metric is not None and not (isinstance(self.metric, str) and METRIC_NAME.fullmatch(self.metric)):
            raise UserError(f"unstale.App: metric is {self.metric!r:.80}, expected 1 to 64 characters of a-z0-9_./-")
        if not (self.exchange is None or callable(self.exchange) or isinstance(self.exchange, Collection)):
            raise UserError(f"unstale.App: exchange is {self.exchange!r:.80}, expected names, or a function of a name")

    @property
    def main(self) -> MainMetric:
        """The metric that a run shows first."""
        return MainMetric(self.metric or "loss", self.higher_is_better if self.metric else False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulApp(App):
    """An app whose evaluation function takes the client's state, too, a copy of `Task.state`."""

    evaluate: Callable[..., Measured] | None = None


def exchanged(app: App, module: nn.Module) -> list[str]:
    """Names of the parameters and float buffers of its model that an app exchanges, in the module's order.

    Raises UserError.
    """
    parameters = dict(module.named_parameters())
    every: dict[str, Tensor] = {**parameters, **dict(float_buffers(module))}
    frozen = {name for name, parameter in parameters.items() if not parameter.requires_grad}
    chosen = _chosen(app.exchange, every, frozen)
    names = [name for name in every if name in chosen and name not in frozen]
    if parameters.keys().isdisjoint(names):
        raise UserError(
            "the app exchanges no parameter: expected some with requires_grad in its model"
            + ("" if app.exchange is None else ", and exchange to name them")
        )
    for name in names:
        if every[name].dtype not in EXCHANGED:
            raise UserError(
                f"the app exchanges {name!r} of {every[name].dtype}, expected float32, float16 or bfloat16; convert "
                "it, or leave it out by exchange"
            )
    return names


def _chosen(exchange: Selection | None, every: Collection[str], frozen: Collection[str]) -> set[str]:
    """The names that `App.exchange` chooses. Raises UserError for one that is unknown or frozen."""
    if exchange is None:
        return set(every)
    if callable(exchange):
        with calling("exchange"):
            return set(filter(exchange, every))
    chosen = {exchange} if isinstance(exchange, str) else set(exchange)
    for name in sorted(chosen):
        if name not in every:
            close = get_close_matches(name, every, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"expected some of {', '.join(list(every)[:8])}"
            raise UserError(f"the app exchanges {name!r}, which its model does not have; {hint}")
        if name in frozen:
            raise UserError(f"the app exchanges {name!r}, which is frozen; set its requires_grad, or leave it out")
    return chosen


def make_module(app: App, seed: int) -> nn.Module:
    """The model of an app, made twice to check that it is the same each time. seed: of the run.

    Raises UserError.
    """
    module, again = _made(app, seed), _made(app, seed)
    _check_same(module, again)
    return module


def _made(app: App, seed: int) -> nn.Module:
    with seeded(seed), calling("model"):
        module = app.model()
    if not isinstance(module, nn.Module):
        raise UserError(f"the app's model function returns a {type(module).__name__}, expected a torch.nn.Module")
    for name, tensor in tensors_of(module):
        if tensor.is_meta or is_lazy(tensor):
            raise UserError(
                f"the app's model function made {name!r} without values, expected a model that can compute; name all "
                "sizes of its layers, and make it on a device"
            )
    return module


@contextmanager
def calling(function: str) -> Iterator[None]:
    """Logs an exception of a function of an app with its traceback, and raises UserError."""
    try:
        yield
    except Exception as error:
        log.error("the app's %s function raised an exception", function, exc_info=error)
        raise UserError(f"the app's {function} function: {described(error)}") from error


def _check_same(one: nn.Module, other: nn.Module) -> None:
    ours, theirs = dict(tensors_of(one)), dict(tensors_of(other))
    for name in [*ours, *theirs]:
        if name not in theirs or name not in ours:
            raise UserError(f"the app's model function made {name!r} in one of two calls only, expected the same model")
        mine, its = ours[name], theirs[name]
        if mine.shape != its.shape or mine.dtype != its.dtype:
            raise UserError(
                f"the app's model function made {name!r} of shape {list(mine.shape)} and then {list(its.shape)}, "
                f"{mine.dtype} and then {its.dtype}, expected the same model on each call"
            )
        if not torch.equal(mine, its):
            raise UserError(
                f"the app's model function made {name!r} with other values on its second call, expected the same "
                "model; draw them with PyTorch's own generator, which is seeded, or read them from a file"
            )


def tensors_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """All parameters and buffers with their names."""
    return [*module.named_parameters(), *module.named_buffers()]
