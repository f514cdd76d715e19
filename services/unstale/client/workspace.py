"""Makes the training context of a run from its welcome and the settings of this machine."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError
from torch import nn

from unstale import translate
from unstale.config.scenario import conditions
from unstale.config.settings import APP, PRIVATE, Settings
from unstale.config.workspace import TrainingContext, app_context, attack_of, training_context
from unstale.errors import UserError
from unstale.plugins import Registry, is_code
from unstale.settings.learning import (
    DataSettings,
    ModelSettings,
    ObjectiveSettings,
    PartitionSettings,
    TrainingSettings,
    VariantSettings,
)
from unstale.settings.part import takes
from unstale.settings.values import Section
from unstale.training.partition import REGISTRY as PARTITIONS
from unstale.training.registry import REGISTRY as TRAININGS
from unstale_proto import signature
from unstale_proto.messages import DataPlan, ObjectivePlan, PartPlan, Welcome

log = logging.getLogger("unstale.client")

S = TypeVar("S", bound=Section)


def training_context_of(welcome: Welcome, own: Settings) -> TrainingContext:
    """Make the training context of a welcome. own: settings of this machine, such as its data path and device.

    A server chooses among built-in parts only: it names no file, and no code that `own` does not name too. Raises
    UserError for a model or data set that differs from the server's.
    """
    if welcome.model == APP and welcome.data == PRIVATE:
        return _app_context_of(welcome, own)
    if own.is_app:
        raise UserError(
            f"app is {own.app!r}, but the server's run trains model {welcome.model!r} on data {welcome.data!r}; leave "
            "out app, or start the server with --app or --initial"
        )
    settings = _settings_of(welcome, own)
    named = (own.model.name, own.data.name, own.data.variant.name, own.objective.name)
    hosted = range(own.client.first, own.client.first + own.client.count)
    code = [name for name in named if name is not None]
    made = training_context(settings, code=code, hosted=hosted if settings.data.private else None)
    if not _is_signed(welcome, made):
        raise UserError(
            f"model {welcome.model!r} has {made.model.dimension} parameters on this machine and another signature than "
            "the server's; use the same data set and the same version of unstale on both sides"
        )
    _check_frozen(welcome, made, f"model {welcome.model!r}")
    _check_labels(welcome, settings, made)
    attack = attack_of(settings.attack, settings.clients, settings.seed)
    if attack is not None:  # the seed of the run selects the clients that attack
        log.warning(
            "attack, for experiments: %s; %d of them in this process",
            attack.description,
            len(attack.clients.intersection(hosted)),
        )
    return made


def _check_labels(welcome: Welcome, settings: Settings, made: TrainingContext) -> None:
    """Raise UserError for a data set with other training labels than the server's."""
    labels = None if welcome.data_plan is None else welcome.data_plan.labels
    if labels is not None and labels != made.data.labels_digest:
        variant = settings.data.variant.name
        other = "" if variant is None else f", or {variant!r} of data.variant,"
        raise UserError(
            f"data set {welcome.data!r}{other} has other training labels on this machine than on the server; "
            "use the same files, data.share and data.validation on both sides"
        )


def durations_of(welcome: Welcome, own: Settings) -> Callable[[int, int, int], float]:
    """Seconds of a task on the devices of the scenario in `own`, by client id, number of the task, and local steps.

    Call it after `training_context_of`, which checks the data. Raises UserError for a scenario that does not fit the
    clients of the run.
    """
    return conditions(_settings_of(welcome, own)).devices.duration_s


def _app_context_of(welcome: Welcome, own: Settings) -> TrainingContext:
    if own.app is None:
        raise UserError(
            "the server's run trains an app, which this client does not name; add --app, such as my_app:app"
        )
    made = app_context(_settings_of(welcome, own), partial(_agreed, welcome, own.app))
    if not _is_signed(welcome, made):
        raise UserError(
            f"the server's signature is not that of app {own.app!r}; use the same version of unstale on both sides"
        )
    _check_frozen(welcome, made, f"app {own.app!r}")
    return made


def _check_frozen(welcome: Welcome, made: TrainingContext, what: str) -> None:
    """Raise UserError for a model with other frozen parameters than the server's, which no payload holds."""
    if welcome.frozen is not None and welcome.frozen != made.model.frozen_digest:
        raise UserError(
            f"{what} has other values, names or types of frozen parameters on this machine than on the server; load "
            "the same file on both sides, with the same version of PyTorch if a seed draws them"
        )


def _is_signed(welcome: Welcome, made: TrainingContext) -> bool:
    """Whether the signature of the welcome is that of our model."""
    return signature.digest(translate.to_specs((*made.model.parameters, *made.model.buffers))) == welcome.signature


def _agreed(welcome: Welcome, app: str, module: nn.Module, names: Sequence[str]) -> list[str]:
    """The names that server and app exchange, in the order of the server. Raises UserError where these differ."""
    parameters, every = dict(module.named_parameters()), dict(module.named_parameters()) | dict(module.named_buffers())
    ours = {name: ("a parameter" if name in parameters else "a buffer", tuple(every[name].shape)) for name in names}
    theirs = {tensor.name: ("a parameter", tensor.shape) for tensor in welcome.tensors}
    theirs |= {tensor.name: ("a buffer", tensor.shape) for tensor in welcome.buffers or ()}
    different = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    if different:
        shown = "; ".join(
            f"{name!r} is {_kind(ours.get(name))} here and {_kind(theirs.get(name))} there" for name in different[:3]
        )
        raise UserError(
            f"app {app!r} and the server exchange different tensors: {shown} ({len(different)} in all); use the same "
            "app on both sides"
        )
    return list(theirs)


def _kind(tensor: tuple[str, tuple[int, ...]] | None) -> str:
    return "not exchanged" if tensor is None else f"{tensor[0]} of shape {list(tensor[1])}"


def _settings_of(welcome: Welcome, own: Settings) -> Settings:
    if welcome.model == APP:
        return own.model_copy(update={"seed": welcome.seed, "clients": welcome.clients})
    common = {
        "seed": welcome.seed,
        "clients": welcome.clients,
        "model": _model(welcome),
        "objective": _objective(welcome.objective),
        "training": _part(TrainingSettings, TRAININGS, welcome.training, own.training.name),
    }
    return own.model_copy(update=common | (_own_data(own) if welcome.data == PRIVATE else _data_of(welcome, own)))


def _own_data(own: Settings) -> dict[str, Section]:
    """The sections of data that the server does not know. Raises UserError where this machine names none."""
    if "name" not in own.data.model_fields_set:
        raise UserError(
            "the server's run is of private data, but this client names none; name its own with data.name, such as "
            "--data npz --data.path mine.npz"
        )
    if own.data.variant.name is not None:
        raise UserError(
            f"data.variant.name is {own.data.variant.name!r} in a run of private data, expected data that does not "
            "change; leave it out"
        )
    path = own.client.data_path or own.data.path
    data = own.data.model_copy(update={"private": True, "path": path if _has_path(own.data.name) else None})
    return {"data": data, "partition": own.partition}


def _model(welcome: Welcome) -> ModelSettings:
    plan = {} if welcome.model_plan is None else welcome.model_plan.model_dump(exclude_none=True)
    return _section("model", ModelSettings, {"name": welcome.model, **plan})


def _data_of(welcome: Welcome, own: Settings) -> dict[str, Section]:
    """The sections of data that the server names."""
    if own.data.private:
        raise UserError(
            f"the server names data set {welcome.data!r}, but data.private is true on this machine; join a run of "
            "private data, or leave data.private out"
        )
    data_plan = welcome.data_plan or DataPlan()
    variant = _variant(data_plan, own)
    defaults = DataSettings()
    data = {
        "name": welcome.data,
        "path": (own.client.data_path or own.data.path) if _has_path(welcome.data) else None,
        # A server causes no download that this machine does not configure.
        "download": own.data.download
        and own.data.name == welcome.data
        and variant.name in (None, own.data.variant.name),
        "variant": variant,
        # Fields that the plan does not set have their defaults, not this machine's values.
        "normalise": data_plan.normalise or defaults.normalise,
        "column": data_plan.column or defaults.column,
    }
    return {
        "data": _section("data", DataSettings, dict(own.data) | data),
        "partition": _part(PartitionSettings, PARTITIONS, welcome.partition, own.partition.name),
    }


def _section(path: str, section: type[S], values: Mapping[str, Any]) -> S:
    """A section with values that the server sent. Raises UserError."""
    try:
        return section(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    key = ".".join(map(str, (path, *first["loc"])))
    raise UserError(f"the server wants {key} {first['input']!r}, which is out of bounds here")


def _part(section: type[S], parts: Registry[Any], plan: PartPlan, own_name: str) -> S:
    """The section of a part that the server names, with the keys that the part takes; it ignores others.

    own_name: of the part that this machine names; no other one may be code.
    """
    parts.check_allowed(plan.name, (own_name,))
    factory = parts.factory(plan.name)
    taken = {key: value for key, value in plan.settings.items() if takes(factory, key) and key != "settings"}
    own = {key: taken.pop(key) for key in taken.keys() - section.model_fields.keys()}
    return _section(parts.kind, section, {"name": plan.name, **taken, "settings": own})


def _objective(plan: ObjectivePlan | None) -> ObjectiveSettings:
    if plan is None:
        return ObjectiveSettings()
    return _section("objective", ObjectiveSettings, {"name": plan.name, "settings": dict(plan.settings)})


def _variant(plan: DataPlan, own: Settings) -> VariantSettings:
    """The server names the variant, and this machine its path."""
    variant = plan.variant
    if variant is None:
        return VariantSettings()
    path = own.data.variant.path if _has_path(variant.name) else None
    return _section("data.variant", VariantSettings, {"name": variant.name, "path": path, "rate": variant.rate})


def _has_path(name: str) -> bool:
    return name in ("npz", "folder") or is_code("data", name)
