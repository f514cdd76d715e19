"""The parts of a run, made from the configuration. Each function raises UserError if a part cannot be made."""

import json
import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from unstale.compensators import Compensator, FreshUpdate
from unstale.config import app, compensation
from unstale.config.data import ClientData, sources
from unstale.config.memory import allocator, fits_device
from unstale.config.scenario import check as check_scenario
from unstale.config.scenario import conditions
from unstale.config.settings import APP, Settings
from unstale.config.workspace import Workspace, attack_of, make_workspace
from unstale.coordinator.settings import CoordinatorSettings
from unstale.coordinator.triggers import REGISTRY as TRIGGERS
from unstale.coordinator.triggers import create as create_trigger
from unstale.device_memory import memory_bytes
from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.learner.learner import Learner
from unstale.learner.row_uploads import MATRICES, RowUploads
from unstale.learner.updates import Staging
from unstale.learner.versions import Version
from unstale.policies import Policy, PolicyContext
from unstale.policies.registry import find, settings_of
from unstale.policies.stages import OnHost, wrapped
from unstale.settings.learning import OptimiserSettings, TrainingSettings, TriggerSettings
from unstale.settings.part import takes
from unstale.toxics.scenario import Conditions
from unstale.training.app_workload import central_evaluation
from unstale.training.datasets import check as check_source
from unstale.training.evaluate import evaluate
from unstale.training.measured import NOT_MEASURED, Measured
from unstale.training.model_file import BUFFERS, check_writable, save
from unstale.training.models import find as find_model
from unstale.training.objectives import create as create_objective
from unstale.training.partition import create as create_partition
from unstale.training.registry import create as create_training
from unstale.training.schedule import create as create_schedule

log = logging.getLogger("unstale.training")


class CompensatorOf(Protocol):
    """Makes the compensator of a run; None for none. fresh_update: known to a simulation only."""

    def __call__(
        self, settings: Settings, workspace: Workspace, *, fresh_update: FreshUpdate | None = None
    ) -> Compensator[Any] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComponents:
    """The parts of a run that a server and a simulation share, each made once."""

    workspace: Workspace
    coordinator: CoordinatorSettings
    learner: Learner  # at version 0


def run_components(
    settings: Settings,
    compensator_of: CompensatorOf,
    *,
    workspace: Workspace | None = None,
    coordinator: CoordinatorSettings | None = None,
    fresh_update: FreshUpdate | None = None,
    keep_versions: bool | None = None,
) -> RunComponents:
    """Make the parts of a run, in order.

    Args:
        settings: Of the run.
        compensator_of: Such as `compensation.compensator`.
        workspace: Workspace of the settings, if it was made before.
        coordinator: Settings of the coordinator, if they were made before.
        fresh_update: For `compensator_of`.
        keep_versions: Whether the learner keeps every version that an update may refer to; None to keep them where
            clients are stale by a number of rounds.

    Raises:
        UserError: A part cannot be made.
    """
    workspace = make_workspace(settings) if workspace is None else workspace
    coordinator = coordinator_settings(settings) if coordinator is None else coordinator
    if workspace.client_data is not None:
        workspace.client_data.check()
        _check_own_tests(settings, workspace.client_data)
    return RunComponents(
        workspace=workspace,
        coordinator=coordinator,
        learner=Learner(
            workspace.model.parameters_d,
            policy(settings, workspace.model.dimension, workspace.device, coordinator),
            learning_rate=learning_rate(settings.training, settings.rounds),
            server_multiplier=settings.policy.server_multiplier,
            buffers_b=workspace.model.buffers_b,
            keep_versions=bool(coordinator.stale_rounds) if keep_versions is None else keep_versions,
            past_versions=coordinator.stale_rounds_max,
            compensator=compensator_of(settings, workspace, fresh_update=fresh_update),
        ),
    )


def _check_own_tests(settings: Settings, client_data: ClientData) -> None:
    """Raise UserError where clients are to evaluate, but have no test examples."""
    if settings.evaluate_clients_every is None or client_data.has_own_tests:
        return
    problem = f"data.name {settings.data.name!r} has no test examples"
    if client_data.data.has("test"):
        problem = (
            f"the test set of data.name {settings.data.name!r} does not say whose its examples are, as partition.name "
            f"{settings.partition.name!r} needs"
        )
    raise UserError(f"evaluate_clients_every is {settings.evaluate_clients_every}, but {problem}; leave it out")


def coordinator_settings(settings: Settings, under: Conditions | None = None) -> CoordinatorSettings:
    """The settings of the coordinator. under: conditions of the run; None for those of the settings."""
    under = conditions(settings) if under is None else under
    trigger = trigger_settings(settings)
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
        once_a_cycle=find(settings.policy.name).once_a_cycle and create_trigger(trigger).keeps_sender(),
        stale_rounds=under.stale_rounds,
    )


def trigger_settings(settings: Settings) -> TriggerSettings:
    """The settings of the trigger. A default `k` is at most the number of clients, so that few need no other one."""
    trigger = settings.trigger
    if trigger.k is not None and "k" not in trigger.model_fields_set and takes(TRIGGERS.factory(trigger.name), "k"):
        return trigger.model_copy(update={"k": min(trigger.k, settings.clients)})
    return trigger


def policy(settings: Settings, dimension: int, device: torch.device, coordinator: CoordinatorSettings) -> Policy[Any]:
    """The policy in its initial state.

    Args:
        settings: Of the run.
        dimension: d, parameters of the model.
        device: Of the update matrix.
        coordinator: Settings of the coordinator.

    Raises:
        UserError: The policy does not take a setting, or settings do not fit together.
    """
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
        device=device,
        seed=settings.seed,
        round_size=coordinator.round_size_max,
        rounds=settings.rounds,
        allocate=allocator(chosen.memory, chosen.memory_folder, device),
    )
    history_bytes = 4 * dimension * policy_class.history_rows(checked, context)
    if history_bytes == 0 or fits_device(chosen.memory, history_bytes, device, memory_bytes):
        made = policy_class(checked, context)
    else:
        kind = "host" if chosen.memory == "auto" else chosen.memory
        on_host = replace(context, device=torch.device("cpu"), allocate=allocator(kind, chosen.memory_folder, device))
        made = OnHost(policy_class(checked, on_host), device)
    _check_fits(settings, made)
    return wrapped(made, clip_norm=chosen.clip_norm, norm=chosen.norm, optimiser=chosen.optimiser)


def _check_fits(settings: Settings, made: Policy[Any]) -> None:
    """Raise UserError where training, clipping or the server optimiser do not fit the policy."""
    chosen = settings.policy
    if chosen.optimiser.name == "none" and chosen.optimiser != OptimiserSettings():
        raise UserError(
            "policy.optimiser.name is none, but policy.optimiser has other settings, expected momentum, adam or yogi "
            "with them"
        )
    if create_training(settings.training).needs_extra != made.sends_extra:
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
    return policy(settings, 1, torch.device("cpu"), coordinator or coordinator_settings(settings))


def learning_rate(training: TrainingSettings, rounds: int) -> Callable[[int], float]:
    """The clients' learning rate, a function of the number of rounds so far. rounds: of the run."""
    return create_schedule(training.schedule, learning_rate=training.learning_rate, rounds=rounds).rate


def examples_of(settings: Settings, client_data: ClientData | None) -> Callable[[int], int | None]:
    """Number of training examples of each client, for the admission of updates; None where that is private."""
    if settings.server.num_examples_max != "partition" or settings.data.private or client_data is None:
        return lambda _: None
    return array("q", map(len, client_data.train())).__getitem__


def staging(coordination: CoordinatorSettings, row_numbers: int, where: torch.device) -> Staging:
    """Memory for as many updates as can wait at a time, and for one that is being checked.

    coordination: settings of the coordinator. row_numbers: D, of `Learner.row_numbers`. where: the policy's device.
    """
    rows = coordination.unaggregated_max + 1
    # A round leaves parked updates behind, so each lies by itself.
    rows_per_block = 1 if coordination.once_a_cycle else coordination.round_size_max
    return Staging(
        row_numbers,
        rows_per_block,
        blocks_max=rows // rows_per_block + 2,
        pin=where.type == "cuda",
        uploads=row_uploads(rows_per_block, row_numbers, where),
    )


def row_uploads(rows: int, row_numbers: int, where: torch.device) -> RowUploads | None:
    """Copies of rows to a CUDA device as they arrive; None elsewhere, for rows that lie by themselves, and where the
    copies need more than a quarter of the device's memory.

    A policy's memory of all clients takes up to a half.
    """
    if where.type != "cuda" or rows == 1 or 4 * row_numbers * rows * MATRICES > memory_bytes(where) // 4:
        return None
    return RowUploads(where)


def evaluation(workspace: Workspace) -> Callable[[Version], Measured]:
    """A function that evaluates a version on the test set, in the model of the workspace, which it overwrites. Without
    test examples the result has no metrics.

    If clients are groups of the data, the test examples are those of the groups that are clients. An app evaluates
    itself; without an app, private data leaves a version unmeasured.
    """
    if workspace.app is not None:
        evaluate_app = central_evaluation(workspace.app, workspace.model)
        return lambda version: evaluate_app(version.model_d, version.buffers_b)
    model, data, objective, client_data = (
        workspace.model,
        workspace.test_data,
        workspace.objective,
        workspace.client_data,
    )
    if data is None or objective is None or not data.has("test"):
        return lambda _: NOT_MEASURED
    own_M = None
    by_group = client_data is not None and client_data.partition.by_group
    if by_group and (own := workspace.division.test(workspace.division.train())) is not None:
        own_M = np.sort(np.concatenate(own))
        own_M = own_M if len(own_M) else None  # the clients have none: all examples
    examples = data.examples("test", own_M, workspace.device)

    def measure(version: Version) -> Measured:
        try:
            return evaluate(model, version.model_d, examples, objective, buffers_b=version.buffers_b)
        except UserError:
            raise
        except Exception as error:  # any of the user's model or objective; the run continues
            log.warning("the evaluation raised %s: %s", type(error).__name__, error, exc_info=error)
            return NOT_MEASURED

    return measure


def saver(file: str | None, name: str, model: FlatModel) -> Callable[[Version, int], None]:
    """A function that writes a version and its number to a file; it does nothing without a file.

    Args:
        file: `save_model` of the settings.
        name: Name of the model.
        model: Workspace of the function.

    Raises:
        UserError: The file cannot be written; the function raises it, too.
    """
    path = None if file is None else Path(file)
    if path is not None:
        check_writable(path)

    def write(version: Version, number: int) -> None:
        if path is None:
            return
        about = {"model": name, "version": str(number), "digest": version.digest}
        if name == APP and model.buffers:
            about[BUFFERS] = json.dumps([buffer for buffer, _ in model.buffers])
        save(path, model, version.model_d, about, buffers_b=version.buffers_b)

    return write


def check(settings: Settings) -> None:
    """Raise UserError if a part cannot be made. Does not read the data, nor use the device: both may be elsewhere."""
    if settings.is_app:
        app.check(settings)
    else:
        find_model(settings.model.name, norm=settings.model.norm)
        for source in sources(settings.data):
            check_source(source)
        create_partition(settings.partition)
        create_objective(settings.objective)
    learning_rate(settings.training, settings.rounds)
    attack_of(settings.attack, settings.clients, settings.seed)
    policy_in_small(settings, coordinator_settings(settings, check_scenario(settings)))
    compensation.check(settings)
    if settings.data.private and settings.data.variant.name is not None:
        raise UserError(
            f"data.variant.name is {settings.data.variant.name!r} with data.private true, expected data that does not "
            "change; leave one of them out"
        )
