"""Scenarios: groups of clients, with their devices and toxics."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from types import MappingProxyType
from typing import Any, Self, TypeVar

from pydantic import Field

from unstale.errors import UserError
from unstale.settings.values import Section
from unstale.toxics.client_filter import EVERYONE, ClientFilter, ClientInfo
from unstale.toxics.device import Device, Devices
from unstale.toxics.dropout import Dropout
from unstale.toxics.link import Applied
from unstale.toxics.registry import create
from unstale.toxics.toxic import Name, Toxic
from unstale.toxics.validation import errors_at, shown, validated

GROUPS_MAX = 1000
TOXICS_MAX = 100  # of a group; every message passes each


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """A scenario settled for the clients of one run."""

    toxics: tuple[Applied, ...] = ()  # with different names
    devices: Devices
    # Number of rounds by which the updates of a client are late (T).
    stale_rounds: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    # p_i, the probability that client i is available in a round; None if all clients always are.
    availability: tuple[float, ...] | None = None


class Group(Section):
    """A group of clients. A later group replaces device and staleness, adds toxics."""

    name: Name = Field(min_length=1, max_length=64, description="Name of the group.")
    clients: ClientFilter = Field(EVERYONE, description="Clients of the group; left out: all.")
    device: Device | None = Field(None, description="Compute time of a task.")
    toxics: tuple[Toxic, ...] = Field((), max_length=TOXICS_MAX, description="Toxics of messages.")
    stale_rounds: int | None = Field(
        None, ge=1, le=10**6, description="Rounds by which updates are late, in rounds that wait for all clients."
    )


class Scenario(Section):
    """The content of a scenario file."""

    description: str = Field("", max_length=4096, description="Summary of the scenario, one line.")
    groups: tuple[Group, ...] = Field(min_length=1, max_length=GROUPS_MAX)

    @classmethod
    def parsed(cls, data: Any, where: str) -> Self:
        """Make a scenario from plain data. Raises UserError, prefixed by where."""
        if not isinstance(data, Mapping):
            raise UserError(f"{where} holds no scenario, expected the keys description and groups")
        groups = data.get("groups")
        if not _is_list(groups) or not groups:
            raise UserError(f"{where}: groups is {shown(groups)}, expected a list of groups")
        made = [_group(entry, f"{where}, group {number}") for number, entry in enumerate(groups, 1)]
        _check_unique("group", [group.name for group in made], where)
        names = [toxic.name for group in made for toxic in group.toxics if toxic.name]
        _check_unique("toxic", names, where)
        return validated(cls, {**data, "groups": made}, where)

    def scaled(self, factor: float) -> Self:
        """The same scenario with all times multiplied. Raises UserError."""
        if factor == 1:
            return self
        groups = []
        for group in self.groups:
            where = f"group {group.name}"
            device = group.device and _scaled(group.device, factor, f"{where}, device")
            toxics = tuple(
                _scaled(toxic, factor, f"{where}, toxic {number} ({toxic.type})")
                for number, toxic in enumerate(group.toxics, 1)
            )
            groups.append(group.model_copy(update={"device": device, "toxics": toxics}))
        return self.model_copy(update={"groups": tuple(groups)})

    def settled(self, client_info: ClientInfo, seed: int) -> Conditions:
        """Settle the scenario for the clients of a run. Raises UserError."""
        taken = {toxic.name for group in self.groups for toxic in group.toxics if toxic.name}
        toxics: list[Applied] = []
        devices: dict[int, Device] = {}
        stale_rounds: dict[int, int] = {}
        for group in self.groups:
            where = f"group {group.name}"
            with errors_at(where):
                members = group.clients.resolve(client_info, seed, group.name)
            if group.device is not None:
                devices.update(dict.fromkeys(members, group.device))
            if group.stale_rounds is not None:
                stale_rounds.update(dict.fromkeys(members, group.stale_rounds))
            for number, toxic in enumerate(group.toxics, 1):
                name = toxic.name or unused(f"{group.name}/{toxic.type}", taken)
                taken.add(name)
                named = toxic.model_copy(update={"name": name})
                within = f"{where}, toxic {number} ({toxic.type})"
                toxics.append(Applied.settled(named, client_info, seed, members, within))
        return Conditions(
            toxics=tuple(toxics),
            devices=Devices(seed, devices),
            stale_rounds=MappingProxyType(stale_rounds),
            availability=_availability(toxics, stale_rounds, client_info.clients, seed),
        )


def _availability(
    toxics: Sequence[Applied], stale_rounds: Mapping[int, int], clients: int, seed: int
) -> tuple[float, ...] | None:
    """p_i of each client: of two dropouts by rounds the stricter one decides.

    Raises UserError for a late client with a dropout: its tasks have old versions, so its dropouts would be wrong.
    """
    availability: list[float] = []
    for applied in toxics:
        dropout = applied.toxic
        if not isinstance(dropout, Dropout) or not dropout.by_rounds:
            continue
        client_ids = range(clients) if applied.clients is None else applied.clients
        late = sorted(stale_rounds.keys() & client_ids)
        if late:
            raise UserError(
                f"toxic {dropout.name} is a dropout by rounds and touches client {late[0]}, which has stale_rounds "
                f"{stale_rounds[late[0]]}; give a client one of them"
            )
        availability = availability or [1.0] * clients
        for i in client_ids:
            availability[i] = min(availability[i], dropout.probability(i, seed))
    return tuple(availability) or None


def unused(name: str, taken: set[str]) -> str:
    """The name, or the first of name-2, name-3, ... that is not taken."""
    numbered = (f"{name}-{number}" for number in count(2))
    return next(one for one in chain((name,), numbered) if one not in taken)


# --- from plain data ---


def _group(entry: Any, where: str) -> Group:
    if not isinstance(entry, Mapping):
        raise UserError(f"{where} is {shown(entry)}, expected a mapping with a name")
    name = entry.get("name")
    if isinstance(name, str) and name and name.isprintable():
        where = f"{where.rpartition(' ')[0]} {name}"
    data = {**entry, "toxics": _toxics(entry.get("toxics"), where)}
    if entry.get("device") is not None:
        data["device"] = validated(Device, entry["device"], f"{where}, device")
    return validated(Group, data, where)


def _toxics(entries: Any, where: str) -> tuple[Toxic, ...]:
    if entries is None:  # a key without a value
        return ()
    if not _is_list(entries):
        raise UserError(f"{where}: toxics is {shown(entries)}, expected a list of toxics")
    return tuple(create(entry, f"{where}, toxic {number}") for number, entry in enumerate(entries, 1))


def _is_list(data: Any) -> bool:
    return isinstance(data, Sequence) and not isinstance(data, str)


def _check_unique(kind: str, names: Sequence[str], where: str) -> None:
    for name, number in Counter(names).items():
        if number > 1:
            raise UserError(f"{where}: two {kind}s have the name {name!r}; rename one of them")


# --- time ---

M = TypeVar("M", bound=Section)


def _scaled(model: M, factor: float, where: str) -> M:
    where = f"{where}, its times multiplied by scenario.time_scale {factor:g}"
    return validated(type(model), _multiplied(model.model_dump(), factor), where)


def _multiplied(data: Any, factor: float, key: str = "") -> Any:
    """Settings that end in `_per_s` are rates, others that end in `_s` are times."""
    if isinstance(data, Mapping):
        return {name: _multiplied(value, factor, name) for name, value in data.items()}
    if isinstance(data, tuple | list):
        return [_multiplied(value, factor, key) for value in data]
    if not isinstance(data, int | float) or not key.endswith("_s"):
        return data
    return data * (1 / factor if key.endswith("_per_s") else factor)
