"""Trains and evaluates by an app of Flower, as an `App`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, MetricRecord, RecordDict
from torch import Tensor, nn

from unstale.flower.records import from_nest, to_nest
from unstale.flower.run_config import Config
from unstale.training.app import App, ClientInfo, Decline, StatefulApp, Task, Trained, exchanged
from unstale.training.measured import METRIC_NAME, Measured

_TTL = 1e12  # seconds; a task has its own time limit
_LOSSES = ("train_loss", "train-loss", "loss", "eval_loss", "eval-loss")
_NOT_IMPLEMENTED = (3, 4)  # codes of the status of a legacy reply: fit, evaluate


class Arrays(nn.Module):
    """A model of an app without PyTorch: arrays, named by their position or by name."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        super().__init__()
        for name, array in arrays.items():
            tensor = torch.tensor(np.asarray(array))
            if tensor.is_floating_point():
                self.register_parameter(name, nn.Parameter(tensor.float()))
            else:
                self.register_buffer(name, tensor)
        self.dtypes = {name: np.asarray(array).dtype for name, array in arrays.items()}


def hosted(flower_app: Any, model: Callable[[], Any], run_config: Config, num_partitions: int | None) -> App:
    """The app of unstale that calls an app of Flower.

    Args:
        flower_app: A `ClientApp`.
        model: Makes the first model: a module of PyTorch, an array, or several, in a sequence or by name.
        run_config: For `Context.run_config`.
        num_partitions: For `Context.node_config`; None for the number of clients of the run.
    """
    host = _Host(flower_app, run_config, num_partitions)
    evaluates = host.is_legacy or _registers(flower_app, "evaluate")
    app = StatefulApp(
        model=lambda: _module(model()),
        train=host.train,
        data=lambda info: info,
        evaluate=host.evaluate if evaluates else None,
    )
    host.app = app
    return app


def _registers(flower_app: Any, category: str) -> bool:
    """Whether a Message-API app has a function of a category."""
    functions = getattr(flower_app, "_registered_funcs", None)
    return functions is None or f"{category}.default" in functions


def _module(made: Any) -> nn.Module:
    if isinstance(made, nn.Module):
        return made
    if isinstance(made, Mapping):
        return Arrays(made)
    several = made if isinstance(made, Sequence) else [made]
    return Arrays({str(position): array for position, array in enumerate(several)})


@dataclass(eq=False)
class _Host:
    flower_app: Any
    run_config: Config
    num_partitions: int | None
    app: App | None = None  # that this host trains

    @property
    def is_legacy(self) -> bool:
        """Whether the app is a `client_fn`, whose messages have other names."""
        return getattr(self.flower_app, "_call", None) is not None

    def train(self, module: nn.Module, info: ClientInfo, task: Task) -> Trained:
        """The training function of the `App`."""
        config = {"server-round": task.version + 1, "lr": task.learning_rate, **task.settings}
        arrays = _arrays(module) | task.state.get("arrays", {})
        context = self._context(info, task.state.get("context", {}))
        reply = self._reply("train", arrays, config, context, info, task.number)
        answered = _answered(reply, arrays, module)
        assert self.app is not None
        names = set(exchanged(self.app, module))
        own = module.state_dict()
        with torch.no_grad():
            for name in names:
                own[name].copy_(answered[name])
        kept = {name: tensor for name, tensor in answered.items() if name not in names}
        changed = {name: tensor for name, tensor in kept.items() if not torch.equal(tensor, own[name].cpu())}
        _keep(task, "arrays", changed)
        _keep(task, "context", to_nest(context.state))
        examples, metrics = _metrics(reply)
        return Trained(num_examples=examples, loss=_loss(metrics), metrics=metrics)

    def evaluate(self, module: nn.Module, info: ClientInfo, state: Mapping[str, Any]) -> Measured:
        """The evaluation function of the `App`. Changes of `Context.state` are dropped."""
        context = self._context(info, state.get("context", {}))
        reply = self._reply("evaluate", _arrays(module) | state.get("arrays", {}), {}, context, info, 0)
        examples, metrics = _metrics(reply)
        if "loss" not in metrics:
            metrics["loss"] = _loss(metrics)
        return Measured(num_examples=examples, metrics=metrics)

    def _context(self, info: ClientInfo, state: dict[str, Any]) -> Context:
        partitions = self.num_partitions or info.clients
        return Context(
            run_id=info.seed,
            node_id=info.client_id + 1,
            node_config={"partition-id": info.client_id, "num-partitions": partitions},
            state=from_nest(state),
            run_config=dict(self.run_config),
        )

    def _reply(
        self,
        kind: str,
        arrays: Mapping[str, Tensor],
        config: dict[str, Any],
        context: Context,
        info: ClientInfo,
        number: int,
    ) -> RecordDict:
        """The content of the app's reply. Raises ValueError for an error, and Decline if there is no such function."""
        metadata = Metadata(
            run_id=info.seed,
            message_id=f"{kind}-{info.client_id}-{number}",
            src_node_id=1,
            dst_node_id=info.client_id + 1,
            reply_to_message_id="",
            group_id=str(config.get("server-round", "")),
            created_at=1.0,
            ttl=_TTL,
            message_type=kind,
        )
        content = _legacy_content(kind, arrays, config) if self.is_legacy else _content(arrays, config)
        reply = self.flower_app(Message(content=content, metadata=metadata), context)
        if not isinstance(reply, Message):
            raise TypeError(f"the app returned a {type(reply).__name__}, expected a Message of Flower")
        if reply.has_error():
            raise ValueError(f"the app replied with error {reply.error.code}: {reply.error.reason}")
        if self.is_legacy:
            _check_status(reply.content, "fitres" if kind == "train" else "evaluateres")
        return reply.content


def _content(arrays: Mapping[str, Tensor], config: dict[str, Any]) -> RecordDict:
    record = ArrayRecord({name: Array(tensor.numpy()) for name, tensor in arrays.items()})
    return RecordDict({"arrays": record, "config": ConfigRecord(config)})


def _legacy_content(kind: str, arrays: Mapping[str, Tensor], config: dict[str, Any]) -> RecordDict:
    """The content that becomes `FitIns` or `EvaluateIns`."""
    named = {str(position): Array(tensor.numpy()) for position, tensor in enumerate(arrays.values())}
    prefix = "fitins" if kind == "train" else "evaluateins"
    config = {**config, "server_round": config.get("server-round", 0)}
    return RecordDict({f"{prefix}.parameters": ArrayRecord(named), f"{prefix}.config": ConfigRecord(config)})


def _check_status(content: RecordDict, prefix: str) -> None:
    """Raise for a legacy reply with another status than OK."""
    status = content.config_records[f"{prefix}.status"]
    if status["code"] in _NOT_IMPLEMENTED:
        raise Decline(f"the client of Flower: {status['message'] or 'not implemented'}")
    if status["code"] != 0:
        raise ValueError(f"the client of Flower returned status {status['code']}: {status['message']}")


def _arrays(module: nn.Module) -> dict[str, Tensor]:
    """The arrays of a model in the order and the types of the app, on the CPU, with memory of their own."""
    arrays = {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}
    if isinstance(module, Arrays):
        return {name: torch.tensor(arrays[name].numpy().astype(dtype)) for name, dtype in module.dtypes.items()}
    return arrays


def _answered(content: RecordDict, sent: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """The arrays of a reply by name. Raises ValueError where they are not those that were sent."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"the reply has {len(records)} array records, expected one with all arrays of the model")
    arrays = {name: torch.tensor(array.numpy()) for name, array in records[0].items()}
    if [*arrays] == [str(position) for position in range(len(sent))]:
        arrays = dict(zip(sent, arrays.values(), strict=True))  # of a legacy reply, in order
    for name in [*sent, *arrays]:
        if name not in arrays or name not in sent:
            raise ValueError(
                f"the reply has {len(arrays)} arrays, {'without' if name in sent else 'with'} {name!r}, expected the "
                f"{len(sent)} arrays of the model that was sent"
            )
        if arrays[name].shape != sent[name].shape:
            raise ValueError(
                f"the reply has {name!r} of shape {list(arrays[name].shape)}, expected {list(sent[name].shape)}"
            )
    own = module.state_dict()
    return {name: arrays[name].to(own[name].dtype) for name in sent}


def _keep(task: Task, key: str, nest: dict[str, Any]) -> None:
    """Set a part of the client's state; an empty one takes no space."""
    if nest:
        task.state[key] = nest
    else:
        task.state.pop(key, None)


def _metrics(content: RecordDict) -> tuple[Any, dict[str, float]]:
    """The number of examples of a reply, and its metrics that are numbers. Raises ValueError without the number."""
    values: dict[str, Any] = {}
    for record in (*content.config_records.values(), *content.metric_records.values()):
        values |= dict(record) if not _is_status(record) else {}
    examples = next((values.pop(name) for name in ("num-examples", "num_examples") if name in values), None)
    if examples is None:
        raise ValueError(f"the reply has no 'num-examples' in a metric record, but {sorted(values)}")
    numbers = {name.lower(): value for name, value in values.items() if isinstance(value, int | float)}
    return examples, {name: float(value) for name, value in numbers.items() if METRIC_NAME.fullmatch(name)}


def _is_status(record: MetricRecord | ConfigRecord) -> bool:
    return {*record} == {"code", "message"}


def _loss(metrics: Mapping[str, float]) -> float:
    """The mean loss of a reply; 0 if it has none."""
    return next((metrics[name] for name in _LOSSES if name in metrics), 0.0)
