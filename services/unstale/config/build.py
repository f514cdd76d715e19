"""The parts of a run, made from the configuration. Each raises UserError for what only the part knows."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstale.compensators import Compensator
from unstale.config import compensation
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
from unstale.seeds import Stream, stream
from unstale.settings.learning import OptimiserSettings
from unstale.settings.part import takes
from unstale.toxics.scenario import Conditions
from unstale.training import partition as partitions
from unstale.training import registry
from unstale.training.attack import Attack, attackers
from unstale.training.datasets import Dataset, Source, load, part, varied, with_validation
from unstale.training.datasets import check as check_source
from unstale.training.evaluate import Evaluation, evaluate
from unstale.training.local import LocalTraining
from unstale.training.model_file import check_writable, save
from unstale.training.models import build, features
from unstale.training.models import find as find_model
from unstale.training.schedule import Schedule
from unstale.training.schedule import create as create_schedule


def set_up_device(settings: Settings) -> torch.device:
    """Where models and updates lie; from here on PyTorch computes with `threads` threads in this process."""
    torch.set_num_threads(settings.threads)
    return choose(settings.device)


def dataset(settings: Settings, *, code: Collection[str] | None = None) -> Dataset:
    """The data set, read where it lies on this machine, or the part of it that is used; with `data.variant`, that and
    the one that takes its place.

    code: names `package.module:factory` that may be imported; None for any.
    """
    share, validation = settings.data.share, settings.data.validation
    first, *second = [
        part(load(**source, allow_factory=code is None or source["name"] in code), share=share)
        for source in _sources(settings)
    ]
    if not second:
        return first if validation is None else with_validation(first, validation)
    if validation is not None:
        raise UserError(
            f"data.validation is {validation:g} with data.variant, whose test set is that of two data sets; leave out "
            "one of them"
        )
    rate = settings.data.variant.rate
    assert rate is not None, "there is no second one without"
    return varied(first, second[0], rate=rate, normalise=settings.data.normalise)


def _sources(settings: Settings) -> list[dict[str, Any]]:
    """What `load` is told: of the data set, and of the one that takes its place where there is one."""
    chosen, variant = settings.data, settings.data.variant
    common = {"cache": chosen.cache, "download": chosen.download, "normalise": chosen.normalise}
    first = {**common, "name": chosen.name, "path": chosen.path, "column": chosen.column}
    given = [key for key, value in variant if value is not None]
    if not given:
        return [first]
    for key, what in (
        ("name", "the data set whose examples take the place of those of data.name"),
        ("rate", "how many of a client's examples give way at each version, such as 0.25"),
    ):
        if key not in given:
            raise UserError(
                f"data.variant.{given[0]} is {getattr(variant, given[0])!r}, but data.variant.{key} is not given; add "
                f"it: {what}"
            )
    return [first, {**common, "name": variant.name, "path": variant.path, "section": "data.variant"}]


def partition(settings: Settings) -> partitions.Partition:
    """How the training set is shared out."""
    return partitions.create(settings.partition)


def check_partition(settings: Settings, data: Dataset) -> None:
    """Raise UserError when the data set cannot be shared out among the clients, who do that themselves."""
    if settings.evaluate_clients_every is not None and not _has_own_tests(settings, data):
        raise UserError(
            f"evaluate_clients_every is {settings.evaluate_clients_every}, but the test set of data.name "
            f"{settings.data.name!r} does not say whose its examples are, as partition.name "
            f"{settings.partition.name!r} needs; leave it out"
        )
    partitions.check(
        partition(settings), data.train.labels_N.numpy(), settings.clients, _numbers(data.train.groups_N)
    )
    if data.later is not None:
        changes(settings, data, client_partitions(settings, data))


def client_partitions(settings: Settings, data: Dataset) -> list[partitions.Indices]:
    """The training examples of each client.

    They are a function of the data set, the partition's settings, the number of clients and the seed alone, so that
    processes agree on them without a word.
    """
    return partitions.split(
        partition(settings),
        data.train.labels_N.numpy(),
        settings.clients,
        stream(settings.seed, Stream.PARTITION),
        _numbers(data.train.groups_N),
    )


def changes(
    settings: Settings, data: Dataset, shares: Sequence[partitions.Indices]
) -> partitions.VariantStream | None:
    """Which examples each client holds at each version; None where they stay. client_partitions: of
    `client_partitions`."""
    if data.later is None:
        return None
    return partitions.VariantStream(
        shares,
        data.train.labels_N.numpy(),
        data.later.labels_L.numpy(),
        rate=data.later.rate,
        seed=settings.seed,
    )


def client_test_partitions(
    settings: Settings, data: Dataset, shares: Sequence[partitions.Indices]
) -> list[partitions.Indices] | None:
    """The test examples of each client; None where they belong to groups that the test set does not know."""
    if not _has_own_tests(settings, data):
        return None
    return partitions.split_test_set(
        partition(settings),
        shares,
        partitions.Examples(data.train.labels_N.numpy(), _numbers(data.train.groups_N)),
        partitions.Examples(data.test.labels_N.numpy(), _numbers(data.test.groups_N)),
        stream(settings.seed, Stream.OWN_TEST_SETS),
    )


def _has_own_tests(settings: Settings, data: Dataset) -> bool:
    return data.test.groups_N is not None or not partition(settings).by_group


def _numbers(groups_N: Tensor | None) -> partitions.Indices | None:
    return None if groups_N is None else groups_N.numpy()


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
    return Attack(chosen.name, by, seed=settings.seed, factor=chosen.factor)


def schedule(settings: Settings) -> Schedule:
    """The clients' learning rate over the rounds."""
    training = settings.training
    return create_schedule(training.schedule, learning_rate=training.learning_rate, rounds=settings.rounds)


def policy(
    settings: Settings, dimension: int, where: torch.device, under: Conditions | None = None
) -> Policy[Any]:
    """The policy in its first state. dimension: d, parameters of the model. where: of the update matrix. under: the
    conditions of the run; None for those that are configured."""
    under = conditions(settings) if under is None else under
    chosen = settings.policy
    policy_class = find(chosen.name)
    if policy_class.training not in (None, settings.training.name):
        raise UserError(
            f"policy.name is {chosen.name!r}, whose clients train with training.name {policy_class.training!r}, "
            f"got {settings.training.name!r}; add --training {policy_class.training}"
        )
    trigger = TRIGGERS.get(settings.trigger.name)
    checked = settings_of(
        chosen.name,
        {**_known_availability(chosen.name, under), **chosen.settings},
        profile=chosen.profile,
        synchronous=trigger is not None and trigger.in_rounds,
    )
    context = PolicyContext(
        dimension=dimension,
        clients=settings.clients,
        device=where,
        seed=settings.seed,
        round_size=coordinator_settings(settings, under).round_size_max,
        rounds=settings.rounds,
        allocate=allocator(chosen.memory, chosen.memory_folder, where),
    )
    made = policy_class(checked, context)
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
    return wrapped(made, clip_norm=chosen.clip_norm, optimiser=chosen.optimiser)


def _known_availability(policy_name: str, under: Conditions) -> dict[str, Any]:
    """The setting that says how likely each client is there, for a policy that has it."""
    if under.availability is None or "probabilities" not in find(policy_name).Settings.model_fields:
        return {}
    return {"probabilities": under.availability}


def learner(
    settings: Settings,
    model: FlatModel,
    where: torch.device,
    *,
    compensator: Compensator[Any] | None = None,
    keep_versions: bool = False,
) -> Learner:
    """The learner at version 0. model: in its first state. compensator: in its first state, too."""
    late = conditions(settings).stale_rounds.values()
    return Learner(
        model.parameters_d,
        policy(settings, model.dimension, where),
        learning_rate=schedule(settings).rate,
        server_multiplier=settings.policy.server_multiplier,
        buffers_b=model.buffers_b,
        keep_versions=keep_versions,
        past_versions=max(late, default=0),
        compensator=compensator,
    )


def coordinator_settings(settings: Settings, under: Conditions | None = None) -> CoordinatorSettings:
    """What the coordinator is told. under: as for `policy`."""
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


def staging(told: CoordinatorSettings, row_numbers: int, where: torch.device) -> Staging:
    """Rows for as many updates as can wait at a time, and for the one that is being looked at.

    told: what the coordinator is told. row_numbers: D, of `Learner.row_numbers`. where: the policy's device.
    """
    rows = told.unaggregated_max + 1
    # A round leaves parked updates behind, so each lies by itself.
    rows_per_block = 1 if told.once_a_cycle else told.round_size_max
    return Staging(
        row_numbers,
        rows_per_block,
        blocks_max=rows // rows_per_block + 2,
        pin=where.type == "cuda",
    )


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
        return evaluate(
            model, version.model_d, inputs_MX, labels_M, dataset.classes, buffers_b=version.buffers_b
        )

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


def check(settings: Settings) -> None:
    """Raise UserError if a part cannot be made. Data and device are not looked at: they may be elsewhere."""
    find_model(settings.model.name, norm=settings.model.norm)
    for source in _sources(settings):
        check_source(Source(**{**source, "path": source["path"] and Path(source["path"])}))
    partition(settings)
    schedule(settings)
    attack(settings)
    # Nor at memory: it may be there where the run is.
    in_ordinary_memory = settings.policy.model_copy(update={"memory": "host"})
    under = check_scenario(settings)
    made_there = settings.model_copy(update={"policy": in_ordinary_memory})
    policy(made_there, dimension=1, where=torch.device("cpu"), under=under)
    compensation.check(settings)
    coordinator_settings(settings, under)
