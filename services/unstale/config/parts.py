"""The parts of a run, made from the configuration. Each raises UserError for what only the part knows."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unstale.config.keys import KEYS
from unstale.config.settings import Settings
from unstale.coordinator.settings import CoordinatorSettings, SelectorSettings, TriggerSettings
from unstale.coordinator.triggers import TRIGGERS, Trigger
from unstale.errors import UserError, unknown_name
from unstale.flat import FlatModel, digest
from unstale.learner.device import choose
from unstale.learner.updates import Staging
from unstale.policies import Policy, create
from unstale.policies.registry import RESERVED
from unstale.training import registry
from unstale.training.datasets import DATASETS, Dataset, load
from unstale.training.evaluate import Evaluation, evaluate
from unstale.training.local import LocalTraining
from unstale.training.model_file import check_writable, save
from unstale.training.models import MODELS, build
from unstale.training.partition import check_size


def set_up_device(settings: Settings) -> torch.device:
    """Where models and updates lie; from here on PyTorch computes with `threads` threads in this process."""
    torch.set_num_threads(settings.threads)
    return choose(settings.device)


def dataset(settings: Settings) -> Dataset:
    """The data set, read where it lies on this machine."""
    return load(settings.data.name, settings.data.path)


def check_partition(settings: Settings, data: Dataset) -> None:
    """Raise UserError when the data set cannot be shared out among the clients, who do that themselves."""
    check_size(len(data.labels_train_N), settings.clients, settings.partition.min_examples)


def model(settings: Settings, data: Dataset, where: torch.device) -> FlatModel:
    """The model in its first state, which the seed decides. where: the device."""
    return FlatModel(build(settings.model.name, data.input_shape, data.classes, settings.seed), where)


def training(settings: Settings) -> LocalTraining:
    """How the clients train."""
    chosen = settings.training
    if chosen.name == "gradient":
        return registry.create("gradient", batch_size=chosen.batch_size)
    return registry.create(
        chosen.name,
        batch_size=chosen.batch_size,
        steps=chosen.steps if chosen.epochs is None else None,
        epochs=chosen.epochs,
        momentum=chosen.momentum,
        weight_decay=chosen.weight_decay,
    )


def policy(settings: Settings, dimension: int, where: torch.device | str) -> Policy[Any]:
    """The policy in its first state. dimension: d, parameters of the model. where: of the update matrix."""
    chosen = settings.policy
    for key in sorted(RESERVED):
        if key in chosen.settings:  # ours to say, below
            raise UserError(
                f"policy.settings.{key} is given, expected settings that `unstale policies` lists"
            )
    trigger = TRIGGERS.get(settings.trigger.name)
    return create(
        chosen.name,
        dimension=dimension,
        clients=settings.clients,
        device=where,
        seed=settings.seed,
        round_size=coordinator_settings(settings).round_size_max,
        rounds=settings.rounds,
        synchronous=trigger is not None and trigger.in_rounds,
        **chosen.settings,
    )


def rate(settings: Settings) -> float:
    """eta, what the server's step is multiplied by: eta_g * eta_l (algorithms.md 1.4)."""
    return settings.policy.server_multiplier * settings.training.learning_rate


def coordinator_settings(settings: Settings) -> CoordinatorSettings:
    """What the coordinator is told."""
    chosen = settings.trigger
    k = chosen.k
    if k == KEYS["trigger.k"].default and not _counts(chosen.name):
        k = None  # the default is for triggers that count: `--trigger sync` is enough for one that does not
    elif k is not None and "k" not in chosen.model_fields_set:
        k = min(k, settings.clients)  # nor should a run with few clients need more than `--clients 4`
    return CoordinatorSettings(
        clients=settings.clients,
        rounds=settings.rounds,
        trigger=TriggerSettings(name=chosen.name, k=k, wait_s=chosen.wait_s),
        selector=SelectorSettings(name=settings.selector.name, size=settings.selector.size),
        seed=settings.seed,
        lease_s=settings.server.lease_s,
        evaluate_every=settings.evaluate_every,
        retry_s=settings.server.retry_s,
        min_clients=settings.min_clients,
    )


def _counts(trigger: str) -> bool:
    """Whether this trigger takes a k."""
    trigger_type: type = TRIGGERS.get(trigger, Trigger)
    return is_dataclass(trigger_type) and "k" in {field.name for field in fields(trigger_type)}


def staging(told: CoordinatorSettings, dimension: int, where: torch.device) -> Staging:
    """Rows for as many updates as can wait at a time, and for the one that is being looked at.

    told: what the coordinator is told. dimension: d. where: the policy's device.
    """
    rows = told.unaggregated_max + 1
    return Staging(
        dimension,
        told.round_size_max,
        blocks_max=rows // told.round_size_max + 2,
        pin=where.type == "cuda",
    )


def evaluation(model: FlatModel, dataset: Dataset, where: torch.device) -> Callable[[Tensor], Evaluation]:
    """A function that measures a model [d] on the test set. model: its workspace, which it overwrites."""
    inputs_MX = dataset.inputs_test_MX.to(where)
    labels_M = dataset.labels_test_M.to(where)

    def measure(model_d: Tensor) -> Evaluation:
        return evaluate(model, model_d, inputs_MX, labels_M, dataset.classes)

    return measure


def saver(settings: Settings, model: FlatModel) -> Callable[[Tensor, int], None]:
    """A function that writes a model [d] and its version to save_model, if that names a file.

    model: its workspace. Both raise UserError when the file cannot be written: this one before the run is made, so that
    little is left for the other.
    """
    path = None if settings.save_model is None else Path(settings.save_model)
    if path is not None:
        check_writable(path)

    def write(model_d: Tensor, version: int) -> None:
        if path is None:
            return
        about = {"model": settings.model.name, "version": str(version), "digest": digest(model_d)}
        save(path, model, model_d, about)

    return write


def check(settings: Settings) -> None:
    """Raise UserError if a part cannot be made. Data and device are not looked at: they may be elsewhere."""
    if settings.model.name not in MODELS:
        raise unknown_name("model", settings.model.name, MODELS)
    if settings.data.name not in DATASETS:
        raise unknown_name("data set", settings.data.name, DATASETS)
    if settings.data.name == "npz" and settings.data.path is None:
        raise UserError("data.path is null, expected the path of the file that data.name npz reads")
    training(settings)
    policy(settings, dimension=1, where="cpu")
    coordinator_settings(settings)
