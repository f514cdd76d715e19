"""The data set, the model and the device of a run on one machine, and the training of its clients there."""

from collections.abc import Collection
from dataclasses import dataclass

import torch

from unstale.config.data import ClientData, read_dataset
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.learner.device import choose
from unstale.settings.learning import AttackSettings
from unstale.settings.part import value_of
from unstale.training.attack import Attack, attackers
from unstale.training.datasets import Dataset
from unstale.training.models import build, features
from unstale.training.registry import create as create_training
from unstale.training.trainer import Trainer
from unstale.training.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The data set of a run, its division among the clients, and one instance of the model."""

    dataset: Dataset
    client_data: ClientData
    model: FlatModel  # at first in its initial state, which the seed determines
    device: torch.device


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


def make_workspace(
    settings: Settings, *, code: Collection[str] | None = None, data: Dataset | None = None
) -> Workspace:
    """Read the data set and build the model; PyTorch computes with `threads` threads from here on.

    Args:
        settings: Of the run.
        code: Names `package.module:factory` that may be imported, since this machine's user gave them; None for any.
        data: The data set of the settings, if it was read before.

    Raises:
        UserError: The data set or the model cannot be made.
    """
    torch.set_num_threads(settings.threads)
    device = choose(settings.device)
    if data is None:
        data = read_dataset(settings.data, code=code)
    chosen = settings.model
    module = build(
        chosen.name,
        data.input_shape,
        data.classes,
        settings.seed,
        norm=chosen.norm,
        projection_head=chosen.projection_head,
        allow_factory=code is None or chosen.name in code,
    )
    if settings.training.name == "moon":
        features(module)  # raises for a model without features to contrast
    client_data = ClientData.of(settings, data)
    return Workspace(dataset=data, client_data=client_data, model=FlatModel(module, device), device=device)


def training_context(
    settings: Settings, *, code: Collection[str] | None = None, data: Dataset | None = None
) -> TrainingContext:
    """Make a workspace with a trainer; the arguments are those of `make_workspace`. Raises UserError."""
    workspace = make_workspace(settings, code=code, data=data)
    client_data = workspace.client_data
    train = client_data.train()
    trainer = Trainer(
        workspace.dataset,
        train,
        workspace.model,
        create_training(settings.training),
        settings.seed,
        test_partitions=client_data.test(train),
        changes=client_data.changes(train),
        attack=attack_of(settings.attack, settings.clients, settings.seed),
    )
    return TrainingContext(
        dataset=workspace.dataset,
        client_data=client_data,
        model=workspace.model,
        device=workspace.device,
        workload=trainer,
    )


def attack_of(chosen: AttackSettings, clients: int, seed: int) -> Attack | None:
    """The attack by some clients; None if all are honest. Raises UserError if more attack than there are."""
    if chosen.name is None:
        return None
    if chosen.clients > clients:
        raise UserError(f"attack.clients is {chosen.clients}, but the run has {clients} clients; let fewer attack")
    return Attack(chosen.name, attackers(seed, clients, chosen.clients), seed=seed, factor=value_of(chosen, "factor"))
