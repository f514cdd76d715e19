"""A scenario: groups of clients, what devices they have, and what goes wrong between them and the server.

A scenario says what it says of any run; settled for the clients of one, it becomes the conditions of that run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unstale.errors import UserError
from unstale.toxics.client_filter import EVERYONE, ClientFilter
from unstale.toxics.client_info import ClientInfo
from unstale.toxics.device import Device, Devices
from unstale.toxics.dropout import Dropout
from unstale.toxics.link import Applied
from unstale.toxics.mistakes import shown, user_error
from unstale.toxics.registry import create
from unstale.toxics.toxic import Name, Toxic

GROUPS_MAX = 1000  # a file of more was made by a program that should write ranges
TOXICS_MAX = 100  # of a group; every message goes through each


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a scenario means for the clients of one run.

    toxics: in order, with names that differ. devices: how long tasks take. stale_rounds: of a client whose updates are
    so many rounds late (T). availability: p_i, how likely client i is there in a round; None where
    everybody always is.
    """

    toxics: tuple[Applied, ...] = ()
    devices: Devices
    stale_rounds: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    availability: tuple[float, ...] | None = None


class Group(BaseModel):
    """Some clients, and what is so for them. A later group's device and staleness take the place of an earlier one's;
    toxics add up."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Name = Field(min_length=1, max_length=64, description="What the group is called.")
    clients: ClientFilter = Field(EVERYONE, description="Who is in it; left out: everybody.")
    device: Device | None = Field(None, description="How long a task takes there.")
    toxics: tuple[Toxic, ...] = Field((), max_length=TOXICS_MAX, description="What messages go through.")
    stale_rounds: int | None = Field(
        None,
        ge=1,
        le=10**6,
        description="An update comes so many rounds late, in rounds that wait for everybody.",
    )


class Scenario(BaseModel):
    """What a scenario file holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str = Field("", max_length=4096, description="What it is, in a sentence.")
    groups: tuple[Group, ...] = Field(min_length=1, max_length=GROUPS_MAX)

    @classmethod
    def parsed(cls, data: Any, where: str) -> Self:
        """A scenario from plain data. where: it stands, for the sentence of a UserError."""
        if not isinstance(data, Mapping):
            raise UserError(f"{where} holds no scenario, expected the keys description and groups")
        groups = data.get("groups")
        if not isinstance(groups, Sequence) or isinstance(groups, str) or not groups:
            raise UserError(f"{where}: groups is {shown(groups)}, expected a list of groups")
        made = [_group(entry, f"{where}, group {place}") for place, entry in enumerate(groups, 1)]
        _check_names(made, where)
        try:
            return cls.model_validate({**data, "groups": made})
        except ValidationError as error:
            raise user_error(error, cls, where) from None

    def scaled(self, factor: float) -> Self:
        """The same scenario, all of whose times are `factor` times as long. Raises UserError where a setting does not
        allow that."""
        if factor == 1:
            return self
        groups = [
            group.model_copy(
                update={
                    "device": None
                    if group.device is None
                    else _fit(group.device, factor, f"group {group.name}, device"),
                    "toxics": tuple(
                        _fit(toxic, factor, f"group {group.name}, toxic {place} ({toxic.type})")
                        for place, toxic in enumerate(group.toxics, 1)
                    ),
                }
            )
            for group in self.groups
        ]
        return self.model_copy(update={"groups": tuple(groups)})

    def settled(self, client_info: ClientInfo, seed: int) -> Conditions:
        """What it means for the clients of a run. seed: of the run. Raises UserError."""
        taken = {toxic.name for group in self.groups for toxic in group.toxics if toxic.name}
        toxics: list[Applied] = []
        devices: dict[int, Device] = {}
        stale_rounds: dict[int, int] = {}
        for group in self.groups:
            where = f"group {group.name}"
            with_them = _resolved(group.clients, client_info, seed, group.name, None, where)
            if group.device is not None:
                devices.update(dict.fromkeys(with_them, group.device))
            if group.stale_rounds is not None:
                stale_rounds.update(dict.fromkeys(with_them, group.stale_rounds))
            for place, toxic in enumerate(group.toxics, 1):
                name = toxic.name or unused(f"{group.name}/{toxic.type}", taken)
                taken.add(name)
                within = f"{where}, toxic {place} ({toxic.type})"
                named = toxic.model_copy(update={"name": name})
                toxics.append(_applied(named, client_info, seed, with_them, within))
        _check_staleness(toxics, stale_rounds)
        return Conditions(
            toxics=tuple(toxics),
            devices=Devices(seed, devices),
            stale_rounds=MappingProxyType(stale_rounds),
            availability=_availability(toxics, client_info.clients, seed),
        )


def _applied(toxic: Toxic, client_info: ClientInfo, seed: int, group: frozenset[int], where: str) -> Applied:
    clients: frozenset[int] | None = group
    if toxic.clients is not None:
        clients = _resolved(toxic.clients, client_info, seed, toxic.name, group, where)
    if clients is not None and len(clients) == client_info.clients:
        clients = None
    try:
        return Applied(toxic.settled(client_info, clients), clients, group)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _resolved(
    audience: ClientFilter,
    client_info: ClientInfo,
    seed: int,
    name: str,
    among: frozenset[int] | None,
    where: str,
) -> frozenset[int]:
    try:
        return audience.resolve(client_info, seed, name, among)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _availability(toxics: Sequence[Applied], clients: int, seed: int) -> tuple[float, ...] | None:
    """p_i of each client: there when every dropout by rounds lets it be."""
    by_rounds = _by_rounds(toxics)
    if not by_rounds:
        return None
    # Draws belong to client and round, so of two dropouts the stricter one decides.
    return tuple(
        min(
            (
                toxic.probability(client_id, seed)
                for whom, toxic in by_rounds
                if whom is None or client_id in whom
            ),
            default=1.0,
        )
        for client_id in range(clients)
    )


def _check_staleness(toxics: Sequence[Applied], stale_rounds: Mapping[int, int]) -> None:
    """A late client's tasks carry an old version, so that its dropouts would not be those of the round."""
    for whom, toxic in _by_rounds(toxics):
        both = sorted(stale_rounds if whom is None else whom & stale_rounds.keys())
        if both:
            raise UserError(
                f"toxic {toxic.name} is a dropout by rounds and touches client {both[0]}, which has stale_rounds "
                f"{stale_rounds[both[0]]}; give a client one of them"
            )


def _by_rounds(toxics: Sequence[Applied]) -> list[tuple[frozenset[int] | None, Dropout]]:
    """The dropouts by rounds, and whom they touch; None for all."""
    return [
        (applied.clients, applied.toxic)
        for applied in toxics
        if isinstance(applied.toxic, Dropout) and applied.toxic.by_rounds
    ]


def unused(name: str, taken: set[str]) -> str:
    """The name, or the first of name-2, name-3, ... that is free."""
    count, free = 1, name
    while free in taken:
        count += 1
        free = f"{name}-{count}"
    return free


# --- from plain data ---


def _group(entry: Any, where: str) -> Group:
    if not isinstance(entry, Mapping):
        raise UserError(f"{where} is {shown(entry)}, expected a mapping with a name")
    name = entry.get("name")
    if isinstance(name, str) and name and name.isprintable():
        where = f"{where.rpartition(' ')[0]} {name}"
    toxics = entry.get("toxics")
    if toxics is None:  # a key without a value
        toxics = ()
    if not isinstance(toxics, Sequence) or isinstance(toxics, str):
        raise UserError(f"{where}: toxics is {shown(toxics)}, expected a list of toxics")
    made = tuple(create(toxic, f"{where}, toxic {place}") for place, toxic in enumerate(toxics, 1))
    device = entry.get("device")
    if device is not None:
        try:
            device = Device.model_validate(device)
        except ValidationError as error:
            raise user_error(error, Device, f"{where}, device") from None
    try:
        return Group.model_validate({**entry, "device": device, "toxics": made})
    except ValidationError as error:
        raise user_error(error, Group, where) from None


def _check_names(groups: Sequence[Group], where: str) -> None:
    for kind, names in (
        ("group", [group.name for group in groups]),
        ("toxic", [toxic.name for group in groups for toxic in group.toxics if toxic.name]),
    ):
        for name, count in Counter(names).items():
            if count > 1:
                raise UserError(
                    f"{where}: the name {name!r} is that of two {kind}s; give one of them another"
                )


# --- time ---

M = TypeVar("M", bound=BaseModel)


def _fit(model: M, factor: float, where: str) -> M:
    """`_scaled`, or a UserError that says where."""
    try:
        return _scaled(model, factor)
    except ValidationError as error:
        where = f"{where}, its times multiplied by scenario.time_scale {factor:g}"
        raise user_error(error, type(model), where) from None


def _scaled(model: M, factor: float) -> M:
    """Names end in units: what ends in `_per_s` is a rate, what else ends in `_s` is a time."""
    changed: dict[str, Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if name.endswith("_per_s"):
            scaled = _times(value, 1 / factor)
        elif name.endswith("_s"):
            scaled = _times(value, factor)
        else:
            scaled = _times_within(value, factor)
        if scaled is not value:
            changed[name] = scaled
    if not changed:
        return model
    return type(model).model_validate(
        {name: getattr(model, name) for name in type(model).model_fields} | changed
    )


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, tuple):
        return tuple(_times(one, factor) for one in value)
    if isinstance(value, Mapping):
        return {key: _times(one, factor) for key, one in value.items()}
    return value * factor if isinstance(value, (int, float)) else value


def _times_within(value: Any, factor: float) -> Any:
    if isinstance(value, BaseModel):
        return _scaled(value, factor)
    if isinstance(value, tuple) and any(isinstance(one, BaseModel) for one in value):
        return tuple(_times_within(one, factor) for one in value)
    return value
