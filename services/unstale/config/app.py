"""The app of a run, its model, and what does not go together with it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from unstale.config.settings import APP, PRIVATE, FlowerSettings, Settings
from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.plugins import object_of
from unstale.policies.registry import find as find_policy
from unstale.settings.learning import (
    AttackSettings,
    ModelSettings,
    ObjectiveSettings,
    PartitionSettings,
    TrainingSettings,
)
from unstale.training.app import App, exchanged, make_module
from unstale.training.model_file import load_into, module_of

Agree = Callable[[nn.Module, Sequence[str]], Sequence[str]]
"""Takes a module and the names that an app exchanges; returns them in the order of the server. Raises UserError."""


def load_app(settings: Settings) -> App | None:
    """The app that the settings name; None for a server without code. Raises UserError."""
    if settings.app is None:
        return None
    app = object_of("app", settings.app)
    if isinstance(app, App):
        return app
    if type(app).__module__.partition(".")[0] != "flwr":
        raise UserError(
            f"app {settings.app!r} is of type {type(app).__name__}, expected an unstale.App or a ClientApp of Flower"
        )
    return _flower_app(app, settings.app, settings.flower)


def _flower_app(app: object, name: str, own: FlowerSettings) -> App:
    """The app that hosts an app of Flower. Raises UserError."""
    from unstale.flower.host import hosted  # imports flwr
    from unstale.flower.run_config import of_app

    module = name.partition(":")[0]
    task = f"{module.rpartition('.')[0]}.task".lstrip(".")
    try:
        model = object_of("model", own.model or f"{task}:Net")
    except UserError as error:
        if own.model is not None:
            raise
        raise UserError(
            f"app {name!r} of Flower needs its first model ({error}); name it by flower.model, such as "
            "--flower.model my_app.task:Net"
        ) from None
    return hosted(app, model, of_app(module, own.run_config), own.num_partitions)


def initial_model(app: App | None, settings: Settings, device: torch.device) -> FlatModel:
    """The first version of the model. Raises UserError."""
    file = None if settings.initial is None else Path(settings.initial)
    if app is None:
        assert file is not None, "a server without an app has a file"
        return FlatModel(module_of(file), device)
    module = make_module(app, settings.seed)
    names = exchanged(app, module)
    if file is not None:
        load_into(module, names, file)
    return FlatModel(module, device, names)


def received_model(app: App, settings: Settings, device: torch.device, agree: Agree) -> FlatModel:
    """The model of a client, whose values the server sends. Raises UserError."""
    module = make_module(app, settings.seed)
    return FlatModel(module, device, agree(module, exchanged(app, module)))


def check(settings: Settings) -> None:
    """Raise UserError for settings that do not go together with an app."""
    app = settings.app if settings.app is not None else f"initial {settings.initial}"
    training = TrainingSettings(learning_rate=settings.training.learning_rate, schedule=settings.training.schedule)
    for key, is_own, whose in (
        ("model", settings.model == ModelSettings(name=APP), "has its own model"),
        ("data.name", settings.data.name == PRIVATE, "has its own data"),
        ("partition", settings.partition == PartitionSettings(), "has its own data for each client"),
        ("training", settings.training == training, "trains itself, with training.learning_rate and its schedule only"),
        ("objective", settings.objective == ObjectiveSettings(), "has its own loss and metrics"),
        ("attack", settings.attack == AttackSettings(), "has no attacking clients"),
    ):
        if not is_own:
            raise UserError(f"{key} is set together with app {app!r}, which {whose}; leave one of them out")
    policy = find_policy(settings.policy.name)
    if policy.training is not None:
        raise UserError(
            f"policy.name is {settings.policy.name!r}, whose clients train with training.name {policy.training!r}, but "
            f"app {app!r} trains itself; choose another policy"
        )
    compensator = settings.compensator
    adaptive = compensator.settings.get("strength") == "adaptive"
    if compensator.name not in ("none", "first-order") or adaptive:
        chosen = f"{compensator.name!r}" + (" with strength adaptive" if adaptive else "")
        raise UserError(
            f"compensator.name is {chosen}, which needs to know how clients train and with which classes, but app "
            f"{app!r} trains itself; expected none, or first-order with a fixed strength"
        )
