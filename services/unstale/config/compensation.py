"""The compensator of a run, made from the configuration."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from unstale.compensators import Compensator, CompensatorContext, FreshUpdate, LocalSteps, Network, create, describe
from unstale.compensators.compensator import Executor
from unstale.config.settings import Settings
from unstale.config.workspace import Workspace
from unstale.errors import UserError
from unstale.training.datasets import Dataset
from unstale.training.objectives import Classification
from unstale.training.registry import create as create_training
from unstale.training.trainings import FedProx, Sgd

Connect = Callable[[Settings, Dataset], Executor]
"""Connects to the Ray cluster of `ray_cluster`. Raises UserError."""

IMITABLE = ("gradient", "sgd", "fedprox")
"""Local trainings whose updates are a function of model and data alone."""


def ray_cluster(settings: Settings) -> tuple[str, str | None]:
    """Key and address of the Ray cluster on which a compensator inverts; None to invert in the process of the run."""
    own = settings.compensator.ray
    return ("ray", settings.ray) if own is None else ("compensator.ray", own)


def local_steps(settings: Settings) -> LocalSteps:
    """How the clients train, as full-batch steps."""
    chosen = settings.training
    if chosen.name == "gradient":
        return LocalSteps(batch_size=chosen.batch_size)
    training = create_training(chosen)
    return LocalSteps(
        steps=None if chosen.epochs is not None else chosen.steps,
        epochs=chosen.epochs,
        batch_size=chosen.batch_size,
        momentum=training.momentum if isinstance(training, Sgd) else 0.0,
        weight_decay=chosen.weight_decay,
        unknown=None if chosen.name in IMITABLE else chosen.name,
        mu=training.mu if isinstance(training, FedProx) else 0.0,
    )


def compensator(
    settings: Settings,
    workspace: Workspace,
    *,
    clock: Callable[[], float] | None = None,
    fresh_update: FreshUpdate | None = None,
    connect: Connect | None = None,
) -> Compensator[Any] | None:
    """The compensator in its initial state; None for none.

    Args:
        settings: Of the run.
        workspace: Workspace; its model is used in the thread that applies rounds.
        clock: As in `CompensatorContext`.
        fresh_update: As in `CompensatorContext`.
        connect: None to invert in this process, even with a cluster.

    Raises:
        UserError: The compensator cannot be made.
    """
    check(settings)
    data = workspace.test_data
    network = None if data is None else Network(workspace.model.module, data.input_shape, data.outputs)
    make = partial(_made, settings, workspace.device, network=network, clock=clock, fresh_update=fresh_update)
    made = make()
    if made is None or not made.inverts:
        return made
    if data is None or network is None:
        raise UserError(
            f"compensator.name is {settings.compensator.name!r} with data.private true, but inversions need the "
            "shape of the data; choose another compensator, or name test data with data.name"
        )
    network.check_invertible(settings.model.name)
    if not isinstance(workspace.objective, Classification):
        raise UserError(
            f"objective.name is {settings.objective.name!r} with compensator.name {settings.compensator.name!r}, "
            "which inverts updates of a classification; leave one of them out"
        )
    _, address = ray_cluster(settings)
    return made if connect is None or address is None else make(executor=connect(settings, workspace.dataset))


def check(settings: Settings) -> None:
    """Raise UserError for errors that do not depend on model and data."""
    made = _made(settings, torch.device("cpu"), network=None)
    if settings.compensator.ray is not None and not (made is not None and made.inverts):
        raise _unused(settings)


def check_cluster(settings: Settings) -> None:
    """Raise UserError for a cluster that computes nothing, in a run that trains no clients there."""
    if ray_cluster(settings)[1] is not None and not describe(settings.compensator.name).inverts:
        raise _unused(settings)


def _unused(settings: Settings) -> UserError:
    key, address = ray_cluster(settings)
    return UserError(
        f"{key} is {address!r} with compensator.name {settings.compensator.name!r}, which inverts nothing, expected "
        "gradient-inversion or auto; leave it out"
    )


def _made(
    settings: Settings,
    where: torch.device,
    *,
    network: Network | None,
    clock: Callable[[], float] | None = None,
    fresh_update: FreshUpdate | None = None,
    executor: Executor | None = None,
) -> Compensator[Any] | None:
    """The arguments as in `CompensatorContext`."""
    context = CompensatorContext(
        network=network,
        steps=local_steps(settings),
        seed=settings.seed,
        device=where,
        clock=clock,
        fresh_update=fresh_update,
        executor=executor,
    )
    return create(settings.compensator.name, settings.compensator.settings, context)
