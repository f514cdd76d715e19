"""Policies by name: the ones in this folder, and those that other packages register as `unstale.policies`.

A plug-in declares the entry point `name = "package.module:PolicyClass"` in the group; the class derives from
`Policy`. A name of this folder cannot be taken over.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from torch import Tensor

from unstale import plugins
from unstale.errors import UserError, nearest, unknown_name
from unstale.policies.coordinate_median import CoordinateMedian
from unstale.policies.direct import Direct
from unstale.policies.dynsgd import DynSgd
from unstale.policies.fedar import FedAr
from unstale.policies.fedasync import FedAsync
from unstale.policies.fedavg import FedAvg
from unstale.policies.fedavg_is import FedAvgIs
from unstale.policies.fedavg_s import FedAvgS
from unstale.policies.fedbuff import FedBuff
from unstale.policies.fedhist import FedHist
from unstale.policies.fedprox import FedProx
from unstale.policies.fedvarp import FedVarp
from unstale.policies.geometric_median import GeometricMedian
from unstale.policies.gsgm import Gsgm
from unstale.policies.krum import Krum, MultiKrum
from unstale.policies.mifa import Mifa
from unstale.policies.moon import Moon
from unstale.policies.policy import Policy, PolicyContext, PolicySettings, host_memory
from unstale.policies.refl import Refl
from unstale.policies.sasgd import Sasgd
from unstale.policies.scaffold import Scaffold
from unstale.policies.trimmed_mean import TrimmedMean
from unstale.policies.twafl import Twafl
from unstale.policies.weighted import Weighted
from unstale.policies.wkafl import Wkafl

ENTRY_POINT_GROUP = "unstale.policies"

_BUILT_IN: dict[str, type[Policy[Any]]] = {
    "coordinate-median": CoordinateMedian,
    "direct": Direct,
    "dynsgd": DynSgd,
    "fedar": FedAr,
    "fedasync": FedAsync,
    "fedavg": FedAvg,
    "fedavg-is": FedAvgIs,
    "fedavg-s": FedAvgS,
    "fedbuff": FedBuff,
    "fedhist": FedHist,
    "fedprox": FedProx,
    "fedvarp": FedVarp,
    "geometric-median": GeometricMedian,
    "gsgm": Gsgm,
    "krum": Krum,
    "mifa": Mifa,
    "moon": Moon,
    "multi-krum": MultiKrum,
    "refl": Refl,
    "sasgd": Sasgd,
    "scaffold": Scaffold,
    "trimmed-mean": TrimmedMean,
    "twafl": Twafl,
    "weighted": Weighted,
    "wkafl": Wkafl,
}

PROFILES = ("paper", "reference")
"""`paper`: settings default to what the paper says; `reference`: to what its authors' released code does."""

RESERVED = frozenset(
    ("dimension", "clients", "device", "seed", "round_size", "rounds", "allocate", "profile", "synchronous")
)
"""What `create` itself takes: no policy has a setting of this name."""

_NOUNS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_SIGNS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDescription:
    """A setting of a policy, for people. type: `a number`, `one of a, b`. range: `> 0 and <= 1`, "" for none.

    default: None with `required` true means that there is none. synchronous_default, reference_default: where another
    one holds, in synchronous rounds or in the profile `reference`; else equal to `default`. source: where the default
    comes from.
    """

    name: str
    type: str
    range: str
    default: Any
    synchronous_default: Any
    reference_default: Any
    required: bool
    description: str
    source: str

    @property
    def expected(self) -> str:
        """Type and range in words, such as `a number > 0 and <= 1`."""
        return f"{self.type} {self.range}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDescription:
    """A policy, for people. loops: those that its source defines it for. memory: what it keeps between rounds.

    training: the local training that it needs, None for any. needs_base_models: the server keeps every model that an
    update may refer to.
    """

    name: str
    summary: str
    source: str
    loops: tuple[str, ...]
    memory: str
    training: str | None
    needs_base_models: bool
    settings: tuple[SettingDescription, ...]


def names() -> tuple[str, ...]:
    """The names of all policies, sorted; no plug-in is imported for it."""
    return plugins.names(ENTRY_POINT_GROUP, _BUILT_IN)


def describe(name: str) -> PolicyDescription:
    """What a policy is and takes. Raises UserError for a name that is not registered."""
    policy_class = find(name)
    return PolicyDescription(
        name=name,
        summary=(inspect.getdoc(policy_class) or "").partition("\n")[0],
        source=policy_class.source,
        loops=policy_class.loops,
        memory=policy_class.memory,
        training=policy_class.training,
        needs_base_models=policy_class.needs_base_models,
        settings=tuple(
            _setting(policy_class, key, field) for key, field in policy_class.Settings.model_fields.items()
        ),
    )


def create(
    name: str,
    /,
    *,
    dimension: int,
    clients: int,
    device: torch.device | str = "cpu",
    seed: int = 0,
    round_size: int | None = None,
    rounds: int | None = None,
    allocate: Callable[[int, int], Tensor] = host_memory,
    profile: str = "paper",
    synchronous: bool = False,
    **settings: Any,
) -> Policy[Any]:
    """A policy in its first state.

    dimension to allocate: as in `PolicyContext`. profile: one of `PROFILES`. synchronous: whether rounds wait for their
    participants. Both decide defaults only. settings: as `describe(name)` lists them. Raises UserError.
    """
    policy_class = find(name)
    for key, value in (("dimension", dimension), ("clients", clients)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{key} is {value!r}, expected a whole number >= 1")
    if profile not in PROFILES:
        raise unknown_name("profile", profile, PROFILES)
    try:
        device = torch.device(device)
    except RuntimeError:
        raise UserError(f"device is {device!r}, expected cpu, cuda, cuda:<number> or mps") from None
    context = PolicyContext(
        dimension=dimension,
        clients=clients,
        device=device,
        seed=seed,
        round_size=round_size,
        rounds=rounds,
        allocate=allocate,
    )
    defaults = {
        **(policy_class.synchronous_defaults if synchronous else {}),
        **(policy_class.reference_defaults if profile == "reference" else {}),
    }
    return policy_class(_checked(name, policy_class, {**defaults, **settings}), context)


def find(name: str) -> type[Policy[Any]]:
    """The class of a policy. Raises UserError for a name that is not registered, or cannot be imported."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    loaded: type[Policy[Any]] = plugins.load(
        "policy", name, ENTRY_POINT_GROUP, Policy, "unstale.policies.Policy", _BUILT_IN
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
    expected = _setting(policy_class, key, fields[key]).expected
    if first["type"] == "missing":
        raise UserError(f"setting {key!r} of policy {name!r} is missing, expected {expected}")
    raise UserError(f"setting {key!r} of policy {name!r} is {first['input']!r}, expected {expected}")


def _setting(policy_class: type[Policy[Any]], key: str, field: FieldInfo) -> SettingDescription:
    default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, Mapping) else {}
    kind, may_be_null = _kind(field.annotation)
    return SettingDescription(
        name=key,
        type=f"{kind} or null" if may_be_null else kind,
        range=_range(field),
        default=default,
        synchronous_default=policy_class.synchronous_defaults.get(key, default),
        reference_default=policy_class.reference_defaults.get(key, default),
        required=field.is_required(),
        description=field.description or "",
        source=str(extra.get("source", "")),
    )


def _kind(annotation: Any) -> tuple[str, bool]:
    """The type of a setting in words, and whether it may be null."""
    alternatives = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    words = [_noun(one) for one in alternatives if one is not type(None)]
    return " or ".join(words), type(None) in alternatives


def _noun(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(annotation))
    if get_origin(annotation) in (tuple, list):
        return f"a list, each {_noun(get_args(annotation)[0])}"
    return _NOUNS.get(annotation, str(annotation))


def _range(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(bound, attribute):g}"
        for bound in field.metadata
        for attribute, sign in _SIGNS
        if hasattr(bound, attribute)
    ]
    return " and ".join(bounds)
