"""From what a server says of its run to the workplace where this process trains for it."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from unstale import flat
from unstale.config import build
from unstale.config.scenario import conditions
from unstale.config.settings import ClientSettings, Settings
from unstale.config.training_context import TrainingContext, training_context
from unstale.errors import UserError, unknown_name
from unstale.settings.learning import (
    DataSettings,
    ModelSettings,
    PartitionSettings,
    TrainingSettings,
    VariantSettings,
)
from unstale.settings.part import takes
from unstale.settings.values import Section
from unstale.training.partition import PARTITIONS
from unstale.training.registry import TRAININGS
from unstale_proto import signature
from unstale_proto.messages import (
    DataPlan,
    PartPlan,
    TensorSpec,
    Welcome,
)

log = logging.getLogger("unstale.client")

S = TypeVar("S", bound=Section)


def training_context_of(welcome: Welcome, own: Settings) -> TrainingContext:
    """Make what a welcome describes; `own` says where this machine keeps its data and which device it has.

    A server can only choose among what is built in here: it names no file, and no code but what `own` names too. Raises
    UserError when the model comes out differently from the server's.
    """
    settings = _settings_of(welcome, own)
    code = (own.model.name, own.data.name, own.data.variant.name)
    made = training_context(settings, code=[name for name in code if name is not None])
    tensors = [
        TensorSpec(name=name, shape=shape, dtype="float32")
        for name, shape, _ in (*flat.describe(made.model.module), *flat.describe_buffers(made.model.module))
    ]
    if signature.digest(tensors) != welcome.signature:
        raise UserError(
            f"model {welcome.model!r} has {made.model.dimension} parameters on this machine and another signature than "
            "the server's; use the same data set and the same version of unstale on both sides"
        )
    told = None if welcome.data_plan is None else welcome.data_plan.labels
    if told is not None and told != made.dataset.labels_digest:
        variant = settings.data.variant.name
        other = "" if variant is None else f", or {variant!r} of data.variant,"
        raise UserError(
            f"data set {welcome.data!r}{other} has other training labels on this machine than on the server; "
            "use the same files, data.share and data.validation on both sides"
        )
    _announce_attack(settings, own.client)
    return made


def durations_of(welcome: Welcome, own: Settings) -> Callable[[int, int, int], float]:
    """How long a task takes on the devices of the scenario that `own` names: seconds, given client, number and steps.

    To be asked after `training_context_of`, which says whether the data may be looked at. Raises UserError for a
    scenario that does not fit the run's clients.
    """
    return conditions(_settings_of(welcome, own)).devices.duration_s


def _announce_attack(settings: Settings, hosted: ClientSettings) -> None:
    """Log which clients of this process attack, if an attack is configured: the seed of the run chose them."""
    attack = build.attack(settings)
    if attack is None:
        return
    here = attack.clients & {*range(hosted.first, hosted.first + hosted.count)}
    log.warning("attack, for experiments: %s; %d of them in this process", attack.description, len(here))


def _settings_of(welcome: Welcome, own: Settings) -> Settings:
    data_plan = welcome.data_plan or DataPlan()
    variant = _variant(data_plan, own)
    data = {
        "name": welcome.data,
        "path": _path(welcome.data, own),
        # Only what this machine itself means to get.
        "download": own.data.download
        and own.data.name == welcome.data
        and variant.name in (None, own.data.variant.name),
        "variant": variant,
        **_left_open(data_plan),
    }
    return own.model_copy(
        update={
            "seed": welcome.seed,
            "clients": welcome.clients,
            "model": _section("model", ModelSettings, {"name": welcome.model, **_given(welcome.model_plan)}),
            "data": _section("data", DataSettings, dict(own.data) | data),
            "partition": _part("partition", PartitionSettings, PARTITIONS, welcome.partition),
            "training": _part("training", TrainingSettings, TRAININGS, welcome.training),
        }
    )


def _section(path: str, section: type[S], values: Mapping[str, Any]) -> S:
    """A section with values that the server sent. Raises UserError."""
    try:
        return section(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    key = ".".join(map(str, (path, *first["loc"])))
    raise UserError(f"the server wants {key} {first['input']!r}, which is out of bounds here")


def _part(
    path: str,
    section: type[S],
    parts: Mapping[str, type[Any]],
    plan: PartPlan,
) -> S:
    """The section of a part that the server names, with the keys that the part takes; it ignores others."""
    if plan.name not in parts:
        raise unknown_name(path, plan.name, parts)
    taken = {key: value for key, value in plan.settings.items() if takes(parts[plan.name], key)}
    return _section(path, section, {"name": plan.name, **taken})


def _path(name: str, own: Settings) -> str | None:
    """Where this machine has a data set that lies at a path of its own."""
    return (own.client.data_path or own.data.path) if _lies_at_a_path(name) else None


def _variant(plan: DataPlan, own: Settings) -> VariantSettings:
    """The data set that takes the place of the first one, which the server names; where it lies is our own to say."""
    told = plan.variant
    if told is None:
        return VariantSettings()
    path = own.data.variant.path if _lies_at_a_path(told.name) else None
    return _section("data.variant", VariantSettings, {"name": told.name, "path": path, "rate": told.rate})


def _lies_at_a_path(name: str) -> bool:
    return name in ("npz", "folder") or ":" in name


def _given(plan: BaseModel | None) -> dict[str, Any]:
    """The fields of a plan that are there."""
    return {} if plan is None else plan.model_dump(exclude_none=True)


def _left_open(plan: DataPlan) -> dict[str, Any]:
    """What the data set's name leaves open; what the plan does not say is the default, not this machine's choice."""
    defaults = DataSettings()
    return {
        "normalise": plan.normalise or defaults.normalise,
        "column": plan.column or defaults.column,
    }
