"""The parts of a run, made from the configuration. Each raises UserError for what only the part knows."""

from typing import Any

import torch

from unstale.config.settings import Settings
from unstale.errors import unknown_name
from unstale.policies import Policy, create
from unstale.training import registry
from unstale.training.datasets import DATASETS, Dataset, load
from unstale.training.local import LocalTraining
from unstale.training.models import MODELS


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


def policy(settings: Settings, dimension: int, device: torch.device | str) -> Policy[Any]:
    """The policy in its first state. dimension: d, parameters of the model. device: of the update matrix."""
    return create(
        settings.policy.name,
        dimension=dimension,
        clients=settings.clients,
        device=device,
        **settings.policy.settings,
    )


def rate(settings: Settings) -> float:
    """eta, what the server's step is multiplied by: eta_g * eta_l (algorithms.md 1.4)."""
    return settings.policy.server_multiplier * settings.training.learning_rate


def dataset(settings: Settings) -> Dataset:
    """The data set, read where it lies on this machine."""
    return load(settings.data.name, settings.data.path)


def check(settings: Settings) -> None:
    """Raise UserError if a part cannot be made. Data and device are not looked at: they may be elsewhere."""
    if settings.model.name not in MODELS:
        raise unknown_name("model", settings.model.name, MODELS)
    if settings.data.name not in DATASETS:
        raise unknown_name("data set", settings.data.name, DATASETS)
    training(settings)
    policy(settings, dimension=1, device="cpu")
