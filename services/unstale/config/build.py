"""The parts of a run, made from the configuration. Each raises UserError for what only the part knows."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unstale.compensators import Compensator
from unstale.config import compensation
from unstale.config.data import (
    changes,
    check_partition,
    client_partitions,
    client_test_partitions,
    dataset,
    partition,
    sources,
)
from unstale.config.memory import allocator
from unstale.config.scenario import check as check_scenario
from unstale.config.scenario import conditions
from unstale.config.settings import Settings
from unstale.coordinator.settings import CoordinatorSettings
from unstale.coordinator.triggers import TRIGGERS, Trigger
from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.learner.device import choose
from unstale.learner.learner import Learner
from unstale.learner.updates import Staging
from unstale.learner.versions import Version
from unstale.policies import Policy, PolicyContext
from unstale.policies.registry import find, settings_of
from unstale.policies.stages import wrapped
from unstale.settings.learning import OptimiserSettings
from unstale.settings.part import takes, value_of
from unstale.toxics.scenario import Conditions
from unstale.training import registry
from unstale.training.attack import Attack, attackers
from unstale.training.datasets import Dataset
from unstale.training.datasets import check as check_source
from unstale.training.evaluate import Evaluation, evaluate
from unstale.training.local import LocalTraining
from unstale.training.model_file import check_writable, save
from unstale.training.models import build, features
from unstale.training.models import find as find_model
from unstale.training.schedule import Schedule
from unstale.training.schedule import create as create_schedule

# Callers take these from here as well.
__all__ = ["changes", "check_partition", "client_partitions", "client_test_partitions", "dataset", "partition"]


def set_up_device(settings: Settings) -> torch.device:
    """Where models and updates lie; from here on PyTorch computes with `threads` threads in this process."""
    torch.set_num_threads(settings.threads)
    return choose(settings.device)


def model(settings: Settings, data: Dataset, where: torch.device, *, allow_factory: bool = True) -> FlatModel:
    """The model in its first state, which the seed decides. where: the device. allow_factory: as for `dataset`."""
    chosen = settings.model
    module = build(
        chosen.name,
        data.input_shape,
        data.classes,
        settings.seed,
        norm=chosen.norm,
        projection_head=chosen.projection_head,
        allow_factory=allow_factory,
    )
    if settings.training.name == "moon":
        features(module)  # refuses a model that it cannot be done with
    return FlatModel(module, where)


def training(settings: Settings) -> LocalTraining:
    """How the clients train."""
    return registry.create(settings.training)


def attack(settings: Settings) -> Attack | None:
    """The attack by some of the clients; None where all are honest.

    Raises:
        UserError: more clients attack than there are.
    """
    chosen = settings.attack
    if chosen.name is None:
        return None
    if chosen.clients > settings.clients:
        raise UserError(
            f"attack.clients is {chosen.clients}, but the run has {settings.clients} clients; let fewer attack"
        )
    by = attackers(settings.seed, settings.clients, chosen.clients)
    return Attack(chosen.name, by, seed=settings.seed, factor=value_of(chosen, "factor"))


def schedule(settings: Settings) -> Schedule:
    """The clients' learning rate over the rounds."""
    training = settings.training
    return create_schedule(training.schedule, learning_rate=training.learning_rate, rounds=settings.rounds)


def policy(
    settings: Settings, dimension: int, where: torch.device, coordinator: CoordinatorSettings | None = None
) -> Policy[Any]:
    """The policy in its first state.

    Args:
        settings: of the run.
        dimension: d, parameters of the model.
        where: device of the update matrix.
        coordinator: of the run; None to make it here.

    Raises:
        UserError: settings that the policy does not take, or that do not fit together.
    """
    coordinator = coordinator_settings(settings) if coordinator is None else coordinator
    chosen = settings.policy
    policy_class = find(chosen.name)
    if policy_class.training not in (None, settings.training.name):
        raise UserError(
            f"policy.name is {chosen.name!r}, whose clients train with training.name {policy_class.training!r}, "
            f"got {settings.training.name!r}; add --training {policy_class.training}"
        )
    known = {}
    if coordinator.availability is not None and "probabilities" in policy_class.Settings.model_fields:
        known = {"probabilities": coordinator.availability}
    checked = settings_of(
        chosen.name,
        {**known, **chosen.settings},
        profile=chosen.profile,
        synchronous=coordinator.trigger_part.in_rounds,
    )
    context = PolicyContext(
        dimension=dimension,
        clients=settings.clients,
        device=where,
        seed=settings.seed,
        round_size=coordinator.round_size_max,
        rounds=settings.rounds,
        allocate=allocator(chosen.memory, chosen.memory_folder, where),
    )
    made = policy_class(checked, context)
    _check_fits(settings, made)
    return wrapped(made, clip_norm=chosen.clip_norm, optimiser=chosen.optimiser)


def _check_fits(settings: Settings, made: Policy[Any]) -> None:
    """Raise UserError where training, clipping or the server optimiser do not fit the policy."""
    chosen = settings.policy
    if chosen.optimiser.name == "none" and chosen.optimiser != OptimiserSettings():
        raise UserError(
            "policy.optimiser.name is none, but policy.optimiser has other settings, expected momentum, adam or yogi "
            "with them"
        )
    if training(settings).needs_extra != made.sends_extra:
        raise UserError(
            f"training.name is {settings.training.name!r}, which trains with what policy 'scaffold' sends, "
            f"got policy.name {chosen.name!r}"
        )
    if made.sends_extra and chosen.clip_norm is not None:
        raise UserError(
            f"policy.clip_norm is {chosen.clip_norm:g} with policy {chosen.name!r}, whose second vectors belong to the "
            "updates as they came; leave it out"
        )


def policy_in_small(settings: Settings, coordinator: CoordinatorSettings | None = None) -> Policy[Any]:
    """The policy for a model of one parameter, in ordinary memory: to check its settings, or read its attributes."""
    in_ordinary_memory = settings.policy.model_copy(update={"memory": "host"})
    settings = settings.model_copy(update={"policy": in_ordinary_memory})
    return policy(settings, dimension=1, where=torch.device("cpu"), coordinator=coordinator)


def learner(
    settings: Settings,
    model: FlatModel,
    where: torch.device,
    *,
    compensator: Compensator[Any] | None = None,
    keep_versions: bool = False,
    coordinator: CoordinatorSettings | None = None,
) -> Learner:
    """The learner at version 0. model, compensator: in their first state. coordinator: as for `policy`."""
    coordinator = coordinator_settings(settings) if coordinator is None else coordinator
    return Learner(
        model.parameters_d,
        policy(settings, model.dimension, where, coordinator),
        learning_rate=schedule(settings).rate,
        server_multiplier=settings.policy.server_multiplier,
        buffers_b=model.buffers_b,
        keep_versions=keep_versions,
        past_versions=coordinator.stale_rounds_max,
        compensator=compensator,
    )


def coordinator_settings(settings: Settings, under: Conditions | None = None) -> CoordinatorSettings:
    """The settings of the coordinator. under: conditions of the run; None for those that are configured."""
    under = conditions(settings) if under is None else under
    trigger = settings.trigger
    trigger_class = TRIGGERS.get(trigger.name, Trigger)
    if trigger.k is not None and "k" not in trigger.model_fields_set and takes(trigger_class, "k"):
        # A run with few clients needs no more than `--clients 4`.
        trigger = trigger.model_copy(update={"k": min(trigger.k, settings.clients)})
    return CoordinatorSettings(
        clients=settings.clients,
        rounds=settings.rounds,
        trigger=trigger,
        selector=settings.selector,
        availability=under.availability,
        seed=settings.seed,
        lease_s=settings.server.lease_s,
        evaluate_every=settings.evaluate_every,
        retry_s=settings.server.retry_s,
        min_clients=settings.min_clients,
        once_a_cycle=find(settings.policy.name).once_a_cycle and trigger_class.keeps_sender(),
        stale_rounds=under.stale_rounds,
    )


def staging(coordination: CoordinatorSettings, row_numbers: int, where: torch.device) -> Staging:
    """Rows for as many updates as can wait at a time, and for the one that is being looked at.

    coordination: settings of the coordinator. row_numbers: D, of `Learner.row_numbers`. where: the policy's device.
    """
    rows = coordination.unaggregated_max + 1
    # A round leaves parked updates behind, so each lies by itself.
    rows_per_block = 1 if coordination.once_a_cycle else coordination.round_size_max
    return Staging(row_numbers, rows_per_block, blocks_max=rows // rows_per_block + 2, pin=where.type == "cuda")


def evaluation(
    settings: Settings, model: FlatModel, dataset: Dataset, where: torch.device
) -> Callable[[Version], Evaluation]:
    """A function that measures a version on the test set. model: its workspace, which it overwrites.

    Where clients are groups of the data, these are the test examples of those groups that are clients.
    """
    own_M = None
    if partition(settings).by_group and dataset.test.groups_N is not None:
        own = client_test_partitions(settings, dataset, client_partitions(settings, dataset))
        own_M = torch.from_numpy(np.sort(np.concatenate(own))) if own else None
        own_M = None if own_M is None or not len(own_M) else own_M  # clients without any: all there are
    inputs_MX = dataset.test_examples(own_M).to(where)
    labels_M = (dataset.test.labels_N if own_M is None else dataset.test.labels_N[own_M]).to(where)

    def measure(version: Version) -> Evaluation:
        return evaluate(model, version.model_d, inputs_MX, labels_M, dataset.classes, buffers_b=version.buffers_b)

    return measure


def saver(settings: Settings, model: FlatModel) -> Callable[[Version, int], None]:
    """A function that writes a version and its number to save_model, if that names a file.

    model: its workspace. Both raise UserError when the file cannot be written: this one before the run is made, so that
    little is left for the other.
    """
    path = None if settings.save_model is None else Path(settings.save_model)
    if path is not None:
        check_writable(path)

    def write(version: Version, number: int) -> None:
        if path is None:
            return
        about = {"model": settings.model.name, "version": str(number), "digest": version.digest}
        save(path, model, version.model_d, about, buffers_b=version.buffers_b)

    return write


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComponents:
    """The parts of a run on the server's side, each made once. learner: at version 0."""

    device: torch.device
    dataset: Dataset
    model: FlatModel
    coordinator: CoordinatorSettings
    learner: Learner


def run_components(
    settings: Settings,
    compensator_of: Callable[[Settings, FlatModel, Dataset, torch.device], Compensator[Any] | None],
    *,
    keep_versions: bool | None = None,
) -> RunComponents:
    """Make the parts of a run, in order.

    Args:
        settings: of the run.
        compensator_of: makes the compensator, such as `compensation.compensator`.
        keep_versions: whether the learner keeps every version that an update may refer to; None where clients are
            stale by a number of rounds.

    Raises:
        UserError: a part cannot be made.
    """
    device = set_up_device(settings)
    data = dataset(settings)
    check_partition(settings, data)
    made = model(settings, data, device)
    coordinator = coordinator_settings(settings)
    return RunComponents(
        device=device,
        dataset=data,
        model=made,
        coordinator=coordinator,
        learner=learner(
            settings,
            made,
            device,
            compensator=compensator_of(settings, made, data, device),
            keep_versions=bool(coordinator.stale_rounds) if keep_versions is None else keep_versions,
            coordinator=coordinator,
        ),
    )


def check(settings: Settings) -> None:
    """Raise UserError if a part cannot be made. Data and device are not looked at: they may be elsewhere."""
    find_model(settings.model.name, norm=settings.model.norm)
    for source in sources(settings.data):
        check_source(source)
    partition(settings)
    schedule(settings)
    attack(settings)
    policy_in_small(settings, coordinator_settings(settings, check_scenario(settings)))
    compensation.check(settings)
