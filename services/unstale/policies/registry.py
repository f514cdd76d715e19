"""Policies by name: the ones in this folder, and those that other packages register as `unstale.policies`.

A plug-in declares the entry point `name = "package.module:PolicyClass"` in the group; the class derives from
`Policy`. A name of this folder cannot be taken over.
"""

import inspect
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal, get_args, get_origin

import torch
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from unstale.errors import UserError, nearest, unknown_name
from unstale.policies.dynsgd import DynSgd
from unstale.policies.fedasync import FedAsync
from unstale.policies.fedavg import FedAvg
from unstale.policies.fedbuff import FedBuff
from unstale.policies.policy import Policy, PolicySettings
from unstale.policies.sasgd import Sasgd
from unstale.policies.twafl import Twafl

ENTRY_POINT_GROUP = "unstale.policies"

_BUILT_IN: dict[str, type[Policy[Any]]] = {
    "dynsgd": DynSgd,
    "fedasync": FedAsync,
    "fedavg": FedAvg,
    "fedbuff": FedBuff,
    "sasgd": Sasgd,
    "twafl": Twafl,
}

_NOUNS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_SIGNS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDescription:
    """A setting of a policy, for people. expected: type and range in words, such as `a number > 0 and <= 1`.

    default: None with `required` true means that there is none.
    """

    name: str
    expected: str
    default: Any
    required: bool
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDescription:
    """A policy, for people. needs_base_models: the server keeps every model that an update may refer to."""

    name: str
    summary: str
    source: str
    needs_base_models: bool
    settings: tuple[SettingDescription, ...]


def names() -> tuple[str, ...]:
    """The names of all policies, sorted; no plug-in is imported for it."""
    return tuple(sorted({*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))}))


def describe(name: str) -> PolicyDescription:
    """What a policy is and takes. Raises UserError for a name that is not registered."""
    policy_class = _find(name)
    return PolicyDescription(
        name=name,
        summary=(inspect.getdoc(policy_class) or "").partition("\n")[0],
        source=policy_class.source,
        needs_base_models=policy_class.needs_base_models,
        settings=tuple(_setting(key, field) for key, field in policy_class.Settings.model_fields.items()),
    )


def synchronous_defaults(name: str) -> dict[str, Any]:
    """The settings whose default is another one in synchronous rounds, with that default."""
    return dict(_find(name).synchronous_defaults)


def create(
    name: str, /, *, dimension: int, clients: int, device: torch.device | str = "cpu", **settings: Any
) -> Policy[Any]:
    """A policy in its first state.

    dimension: d, parameters of the model, >= 1. clients: N, >= 1; client ids are below it. device: where the
    matrix of updates will lie. settings: as `describe(name)` lists them. Raises UserError.
    """
    policy_class = _find(name)
    for key, value in (("dimension", dimension), ("clients", clients)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{key} is {value!r}, expected a whole number >= 1")
    try:
        device = torch.device(device)
    except RuntimeError:
        raise UserError(f"device is {device!r}, expected cpu, cuda, cuda:<number> or mps") from None
    return policy_class(
        _checked(name, policy_class, settings), dimension=dimension, clients=clients, device=device
    )


def _find(name: str) -> type[Policy[Any]]:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    points = entry_points(group=ENTRY_POINT_GROUP, name=name)
    if not points:
        raise unknown_name("policy", name, names())
    (point, *others) = points
    if others:
        raise UserError(f"policy {name!r} is registered by several packages; uninstall all but one of them")
    try:
        loaded = point.load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"policy {name!r} cannot be imported from {point.value}: {error}") from error
    if not (inspect.isclass(loaded) and issubclass(loaded, Policy)):
        raise UserError(
            f"policy {name!r} is {point.value}, expected a class derived from unstale.policies.Policy"
        )
    return loaded


def _checked(name: str, policy_class: type[Policy[Any]], settings: dict[str, Any]) -> PolicySettings:
    try:
        return policy_class.Settings(**settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    if not first["loc"]:  # a plug-in's own check over several settings
        raise UserError(f"policy {name!r}: {first['msg']}")
    key = str(first["loc"][0])
    fields = policy_class.Settings.model_fields
    if first["type"] == "extra_forbidden":
        advice = nearest(key, fields) if fields else ", which has no settings"
        raise UserError(f"unknown setting {key!r} of policy {name!r}{advice}")
    expected = _setting(key, fields[key]).expected
    if first["type"] == "missing":
        raise UserError(f"setting {key!r} of policy {name!r} is missing, expected {expected}")
    raise UserError(f"setting {key!r} of policy {name!r} is {first['input']!r}, expected {expected}")


def _setting(key: str, field: FieldInfo) -> SettingDescription:
    return SettingDescription(
        name=key,
        expected=_expected(field),
        default=None
        if field.is_required()
        else field.get_default(call_default_factory=True, validated_data={}),
        required=field.is_required(),
        description=field.description or "",
    )


def _expected(field: FieldInfo) -> str:
    """The values that a field takes, in words."""
    if get_origin(field.annotation) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(field.annotation))
    noun = _NOUNS.get(field.annotation, str(field.annotation))
    bounds = [
        f"{sign} {getattr(bound, attribute):g}"
        for bound in field.metadata
        for attribute, sign in _SIGNS
        if hasattr(bound, attribute)
    ]
    return f"{noun} {' and '.join(bounds)}".strip()
