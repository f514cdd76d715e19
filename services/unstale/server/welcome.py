"""The welcome: the configuration of the run in terms of the wire contract."""

import secrets
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from unstale import flat, translate
from unstale.config.settings import APP, Settings
from unstale.errors import UserError
from unstale.settings.learning import ObjectiveSettings
from unstale.settings.values import Section
from unstale.training.partition import create as create_partition
from unstale.training.registry import create as create_training
from unstale_proto import codec, encodings, limits, signature
from unstale_proto.messages import (
    PRIVATE,
    DataPlan,
    ModelPlan,
    ObjectivePlan,
    PartitionPlan,
    PartPlan,
    TrainingPlan,
    VariantPlan,
    Welcome,
)

P = TypeVar("P", bound=PartPlan)


def welcome(settings: Settings, model: flat.FlatModel, *, extra: bool, labels: str | None = None) -> Welcome:
    """The welcome, with a fresh run id, for client 0 at version 0. extra: payloads hold an extra vector.

    labels: `Dataset.labels_digest`. Raises UserError for a model with more tensors than a header can name.
    """
    try:
        tensors, buffers = translate.to_specs(model.parameters), translate.to_specs(model.buffers)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"model.name {settings.model.name!r} has a tensor whose {first['loc'][0]} cannot be sent: {first['msg']}"
        ) from None
    too_many = UserError(
        f"model.name {settings.model.name!r} has {len(tensors)} parameter tensors and {len(buffers)} buffers, more "
        "than a welcome can name; choose a model with fewer"
    )
    if max(len(tensors), len(buffers)) > limits.TENSORS_MAX:
        raise too_many
    made = Welcome(
        client_id=0,
        run_id=secrets.token_hex(16),
        clients=settings.clients,
        seed=settings.seed,
        version=0,
        model=settings.model.name,
        data=PRIVATE if settings.data.private else settings.data.name,
        partition=_partition(settings),
        training=_training(settings),
        tensors=tensors,
        signature=signature.digest((*tensors, *buffers)),
        heartbeat_s=settings.server.heartbeat_s,
        lease_s=settings.server.lease_s,
        model_plan=_model_plan(settings),
        data_plan=_data_plan(settings, labels),
        objective=_objective(settings.objective),
        buffers=buffers or None,
        extra=extra or None,
        encoding=encodings.plan(**settings.encoding.model_dump(), dimension=model.dimension),
        settings=settings.client_settings or None,
        frozen=model.frozen_digest,
    )
    try:
        codec.encode(made)
    except ValueError:
        raise too_many from None
    return made


def _model_plan(settings: Settings) -> ModelPlan | None:
    chosen = settings.model
    return None if settings.is_app else ModelPlan(norm=chosen.norm, projection_head=chosen.projection_head)


def _data_plan(settings: Settings, labels: str | None) -> DataPlan | None:
    if settings.is_app or settings.data.private:
        return None
    data, variant = settings.data, None
    if data.variant.name is not None and data.variant.rate is not None:
        variant = VariantPlan(name=data.variant.name, rate=data.variant.rate)
    return DataPlan(normalise=data.normalise, column=data.column, labels=labels, variant=variant)


def _partition(settings: Settings) -> PartitionPlan:
    if settings.is_app or settings.data.private:
        return PartitionPlan(name=PRIVATE)
    return _plan(PartitionPlan, settings.partition, create_partition(settings.partition))


def _training(settings: Settings) -> TrainingPlan:
    if settings.is_app:
        return TrainingPlan(name=APP)
    return _plan(TrainingPlan, settings.training, create_training(settings.training))


def _objective(chosen: ObjectiveSettings) -> ObjectivePlan | None:
    """None for the default, which a client that knows no objectives has."""
    if chosen == ObjectiveSettings():
        return None
    return ObjectivePlan(name=chosen.name, **chosen.settings)


def _plan(plan: type[P], section: Section, part: BaseModel) -> P:
    """The settings of a part as it was made, in the order of their section."""
    chosen = vars(section)
    values = {"name": chosen["name"], **plan.always, **dict(part)}
    keys = [key for key in type(section).model_fields if key != "settings"]
    settings = {key: values.get(key) for key in keys} | chosen["settings"]
    return plan(**{key: value for key, value in settings.items() if value is not None})
