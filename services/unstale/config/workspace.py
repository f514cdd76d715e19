"""The data set, the model and the device of a run on one machine, and the training of its clients there."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from unstale.config.app import Agree, initial_model, load_app, received_model
from unstale.config.app import check as check_app
from unstale.config.data import ClientData, read_dataset
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.learner.device import choose, set_precision
from unstale.settings.learning import AttackSettings
from unstale.settings.part import value_of
from unstale.training.app import App
from unstale.training.app_workload import AppWorkload
from unstale.training.attack import Attack, attackers
from unstale.training.datasets import Data, Dataset, labelled
from unstale.training.measured import MainMetric
from unstale.training.models import build, build_without_data, features
from unstale.training.nests import Nest
from unstale.training.objectives import Classification, Objective
from unstale.training.objectives import create as create_objective
from unstale.training.registry import create as create_training
from unstale.training.trainer import Trainer
from unstale.training.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The data of a run, its division among the clients, and one instance of the model."""

    client_data: ClientData | None  # of all clients that are trained here; None for an app, and on a server without it
    test_data: Data | None  # of which the server evaluates the test examples, if there are any
    objective: Objective | None  # None for an app
    model: FlatModel  # at first in its initial state, which the seed determines
    device: torch.device
    app: App | None = None  # of the user, which trains and evaluates

    @property
    def main(self) -> MainMetric | None:
        """The main metric of the app or the objective; None for a server without either."""
        if self.app is not None:
            return self.app.main
        return None if self.objective is None else self.objective.main

    @property
    def division(self) -> ClientData:
        """The training data and its division. Raises UserError where there is none."""
        if self.client_data is None:
            raise UserError("data.private is true, so that the training data is not here, but this needs it")
        return self.client_data

    @property
    def data(self) -> Data:
        """The training data. Raises UserError where there is none."""
        return self.division.data

    @property
    def dataset(self) -> Dataset:
        """The training data as labelled tensors. Raises UserError where there is none, and for other data."""
        return labelled(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingContext(Workspace):
    """A workspace in which any client of the run can be trained."""

    workload: Workload

    @property
    def trainer(self) -> Trainer:
        """The workload, for computations that need more than its interface. Raises UserError for another one."""
        if isinstance(self.workload, Trainer):
            return self.workload
        raise UserError(f"the workload is {type(self.workload).__name__}, expected the built-in training of a data set")


def make_workspace(settings: Settings, *, data: Data | None = None) -> Workspace:
    """Make the workspace of a server: without training data, if that is private.

    PyTorch computes with `threads` threads from here on. data: the data set of the settings, if it was read before.
    Raises UserError where the data set or the model cannot be made.
    """
    if settings.is_app:
        return _of_app(settings)
    if data is None and (not settings.data.private or "name" in settings.data.model_fields_set):
        data = read_dataset(settings.data)
    client_data = None if settings.data.private or data is None else ClientData.of(settings, data)
    return _workspace(settings, data, client_data, None)


def _workspace(
    settings: Settings, data: Data | None, client_data: ClientData | None, code: Collection[str] | None
) -> Workspace:
    """data: that the model must fit; None if it is not here."""
    device = _device(settings)
    objective = create_objective(settings.objective, code=code)
    module = _model(settings, data, objective, code)
    if settings.training.name == "moon":
        if not isinstance(objective, Classification):
            raise UserError(
                f"objective.name is {settings.objective.name!r} with training.name 'moon', which contrasts features of "
                "a classification; choose another training, such as fedprox"
            )
        features(module)  # raises for a model without features to contrast
    return Workspace(
        client_data=client_data,
        test_data=None if settings.data.private and client_data is not None else data,
        objective=objective,
        model=FlatModel(module, device),
        device=device,
    )


def _device(settings: Settings) -> torch.device:
    """The device, with the threads and the arithmetic of the settings in this process from here on."""
    torch.set_num_threads(settings.threads)
    device = choose(settings.device)
    set_precision(device, settings.device_precision)
    return device


def _of_app(settings: Settings, agree: Agree | None = None) -> Workspace:
    """agree: as for `received_model`; None for the first version of the model."""
    device = _device(settings)
    check_app(settings)
    app = load_app(settings)
    if agree is None or app is None:
        model = initial_model(app, settings, device)
    else:
        model = received_model(app, settings, device, agree)
    return Workspace(client_data=None, test_data=None, objective=None, model=model, device=device, app=app)


def _model(settings: Settings, data: Data | None, objective: Objective, code: Collection[str] | None) -> nn.Module:
    """The model in its initial state. Raises UserError for one that does not fit the data and the objective."""
    chosen, trial = settings.model, None
    allow_factory = code is None or chosen.name in code
    if data is None:
        return build_without_data(chosen.name, settings.seed, allow_factory=allow_factory)
    if not (isinstance(data, Dataset) and isinstance(objective, Classification)):
        inputs, targets = data.first("train", 2)
        trial = inputs, partial(_check_outputs, objective, chosen.name, targets)
    return build(
        chosen.name,
        data.input_shape,
        data.outputs,
        settings.seed,
        norm=chosen.norm,
        projection_head=chosen.projection_head,
        allow_factory=allow_factory,
        trial=trial,
    )


def _check_outputs(objective: Objective, name: str, targets: Nest, outputs: Nest) -> None:
    """Raise UserError where an objective has no loss of outputs for targets."""
    loss = objective.loss(outputs, targets)
    if loss.ndim or not loss.is_floating_point():
        raise UserError(
            f"the objective gives a loss of shape {list(loss.shape)} for the outputs of model {name!r}, expected a "
            "number; take the mean over the batch"
        )


def training_context(
    settings: Settings, *, code: Collection[str] | None = None, data: Data | None = None, hosted: range | None = None
) -> TrainingContext:
    """Make a workspace with a trainer: the clients' side of a run, also where the data is private.

    Args:
        settings: Of the run.
        code: Names `package.module:factory` that may be imported, since this machine's user gave them; None for any.
        data: The data set of the settings, if it was read before.
        hosted: Ids of the clients among whom the data is divided; None for all of the run.

    Raises:
        UserError: The data set or the model cannot be made.
    """
    if settings.is_app:
        return app_context(settings)
    if data is None:
        data = read_dataset(settings.data, code=code)
    client_data = ClientData.of(settings, data)
    if hosted is not None:
        client_data = replace(client_data, clients=len(hosted))
        client_data.check()
    workspace = _workspace(settings, data, client_data, code)
    objective = workspace.objective
    assert objective is not None, "there is one where there is data"
    train = client_data.train()
    test = client_data.test(train)
    first = 0 if hosted is None else hosted.start
    trainer = Trainer(
        data,
        dict(enumerate(train, first)),
        workspace.model,
        create_training(settings.training),
        settings.seed,
        objective=objective,
        test_partitions=None if test is None else dict(enumerate(test, first)),
        changes=client_data.changes(train),
        attack=attack_of(settings.attack, settings.clients, settings.seed),
    )
    return TrainingContext(
        client_data=client_data,
        test_data=workspace.test_data,
        objective=objective,
        model=workspace.model,
        device=workspace.device,
        workload=trainer,
    )


def app_context(settings: Settings, agree: Agree | None = None) -> TrainingContext:
    """Make a workspace with the app of the settings. agree: as for `received_model`. Raises UserError."""
    made = _of_app(settings, agree)
    if made.app is None:
        raise UserError("clients train by an app, expected app too, such as --app my_app:app")
    workload = AppWorkload(made.app, made.model, settings.clients, settings.seed)
    return TrainingContext(
        client_data=None,
        test_data=None,
        objective=None,
        model=made.model,
        device=made.device,
        app=made.app,
        workload=workload,
    )


def attack_of(chosen: AttackSettings, clients: int, seed: int) -> Attack | None:
    """The attack by some clients; None if all are honest. Raises UserError if more attack than there are."""
    if chosen.name is None:
        return None
    if chosen.clients > clients:
        raise UserError(f"attack.clients is {chosen.clients}, but the run has {clients} clients; let fewer attack")
    return Attack(chosen.name, attackers(seed, clients, chosen.clients), seed=seed, factor=value_of(chosen, "factor"))
