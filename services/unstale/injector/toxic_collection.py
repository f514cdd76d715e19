"""The toxics that an injector applies now: those of its scenario, and what its operator adds or takes away. Pure.

A request that is not valid raises UserError, UnknownNameError for a toxic that is not there, and changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unstale.config.scenario import FILE_KEYS
from unstale.errors import UserError, nearest
from unstale.toxics import registry
from unstale.toxics.client_info import ClientInfo
from unstale.toxics.disconnect import Disconnect
from unstale.toxics.link import Applied
from unstale.toxics.scenario import unused
from unstale.toxics.toxic import Toxic
from unstale.toxics.validation import shown

TOXICS_MAX = 100  # every message goes through each
BLACKOUT = "blackout now"
BLACKOUT_S_MAX = 1e9  # 30 years
# Far more than anybody means, and little enough to be worked off and computed with.
CLIENTS_LISTED_MAX = 1000
DEPTH_MAX = 20
NUMBER_MIN, NUMBER_MAX = 1e-12, 1e12


class UnknownNameError(UserError):
    """There is no toxic of this name."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A toxic. passes: it is a blackout from now on, forgotten once it is over."""

    applied: Applied
    passes: bool = False

    @property
    def toxic(self) -> Toxic:
        return self.applied.toxic


class ToxicCollection:
    """toxics: of the scenario, settled. seed: of the run. relays: whether there is a relay below the messages, which
    the tcp layer needs.

    A shallow copy has a life of its own, so that changes can be made aside. `applied`: all that there are now, in
    order; their names differ.
    """

    def __init__(
        self,
        toxics: Sequence[Applied],
        *,
        client_info: ClientInfo,
        seed: int,
        relays: bool,
    ) -> None:
        self._of_scenario = tuple(map(_Entry, toxics))
        self._client_info = client_info
        self._seed = seed
        self._relays = relays
        self._entries = self._of_scenario
        for applied in toxics:
            self._check_layer(applied.toxic, f"toxic {applied.toxic.name!r}")

    @property
    def applied(self) -> tuple[Applied, ...]:
        return tuple(one.applied for one in self._entries)

    @property
    def of_messages(self) -> tuple[Applied, ...]:
        """Those that messages go through."""
        return tuple(one for one in self.applied if not (self._relays and one.toxic.below_messages))

    @property
    def of_bytes(self) -> tuple[Applied, ...]:
        """Those that the relay carries out."""
        return tuple(one for one in self.applied if self._relays and one.toxic.below_messages)

    def listed(self) -> list[dict[str, Any]]:
        """All of them, as plain data, with how many clients each `touches`. Without that they can be added again, but
        those of a group of clients then choose from all of the run."""
        return [self._described(one.applied) for one in self._entries]

    def found(self, name: str) -> dict[str, Any]:
        """One of them, as plain data."""
        return self._described(self._entries[self._place(name)].applied)

    def add(self, entry: Any) -> str:
        """Add a toxic behind the others. entry: as in a scenario. Its name."""
        _check(entry)
        made = self._made(entry, behind=self._entries)
        self._entries = (*self._entries, made)
        return made.toxic.name

    def change(self, name: str, changes: Any) -> None:
        """Change settings of a toxic, which keeps its name, type and place. changes: those settings; null: default."""
        place = self._place(name)
        before = self._entries[place]
        _check(changes)
        if not isinstance(changes, Mapping):
            raise UserError("expected a JSON object with the settings that change")
        for key in ("name", "type"):
            if key in changes:
                raise UserError(f"{key} cannot be changed; add another toxic and remove this one")
        merged = {**registry.plain(before.toxic), **changes}
        toxic = _created({key: value for key, value in merged.items() if value is not None})
        group = before.applied.group
        clients = self._chosen(toxic, group) if "clients" in changes else before.applied.clients
        changed = _Entry(self._settled(toxic, clients, group))
        self._entries = (*self._entries[:place], changed, *self._entries[place + 1 :])

    def remove(self, name: str) -> None:
        """Take a toxic away."""
        place = self._place(name)
        self._entries = (*self._entries[:place], *self._entries[place + 1 :])

    def reset(self) -> None:
        """Back to those of the scenario."""
        self._entries = self._of_scenario

    def black_out(self, entry: Any, at_s: float) -> str:
        """A blackout from now on. entry: `seconds`, and if it likes `clients` and `layer`. at_s: of the scenario.
        Those that are over are forgotten: they would pile up."""
        if not isinstance(entry, Mapping) or not isinstance(entry.get("seconds"), int | float):
            raise UserError(
                'expected a JSON object with seconds, such as {"seconds": 5, "clients": [0, "3-5"]}'
            )
        unknown = set(entry) - {"seconds", "clients", "layer"}
        if unknown:
            raise UserError(
                f"unknown key {min(unknown)!r}{nearest(min(unknown), ('seconds', 'clients', 'layer'))}"
            )
        seconds = entry["seconds"]
        if isinstance(seconds, bool) or not 0 < seconds <= BLACKOUT_S_MAX:
            raise UserError(
                f"seconds is {shown(seconds)}, expected more than 0 and at most {BLACKOUT_S_MAX:,.0f}"
            )
        others = {key: value for key, value in entry.items() if key != "seconds"}
        _check(others)
        window = {"start_s": at_s, "end_s": at_s + seconds}
        left = tuple(
            one
            for one in self._entries
            if not (one.passes and one.toxic.end_s is not None and one.toxic.end_s <= at_s)
        )
        name = unused(BLACKOUT, _names(left))
        made = self._made({"type": "blackout", "name": name, **window, **others}, behind=left)
        self._entries = (*left, replace(made, passes=True))
        return name

    # --- parts of it ---

    def _made(self, entry: Any, behind: Sequence[_Entry]) -> _Entry:
        """A toxic that there is not yet among those."""
        if len(behind) >= TOXICS_MAX:
            raise UserError(f"there are {TOXICS_MAX} toxics, the most that is allowed; remove one first")
        toxic = _created(entry)
        if not toxic.name:
            toxic = toxic.model_copy(update={"name": unused(toxic.type, _names(behind))})
        elif toxic.name in _names(behind):
            raise UserError(
                f"there is a toxic {toxic.name!r} already; change that, or give this another name"
            )
        return _Entry(self._settled(toxic, self._chosen(toxic, None), None))

    def _chosen(self, toxic: Toxic, group: frozenset[int] | None) -> frozenset[int] | None:
        """The clients that it names, of a group; None for all of the run."""
        if toxic.clients is None:
            return group
        return toxic.clients.resolve(self._client_info, self._seed, toxic.name, group)

    def _described(self, applied: Applied) -> dict[str, Any]:
        count = self._client_info.clients if applied.clients is None else len(applied.clients)
        return {**registry.plain(applied.toxic), "touches": count}

    def _settled(self, toxic: Toxic, clients: frozenset[int] | None, group: frozenset[int] | None) -> Applied:
        """clients, group: as in `Applied`."""
        self._check_layer(toxic, f"the toxic ({toxic.type})")
        if clients is not None and len(clients) == self._client_info.clients:
            clients = None
        try:
            return Applied(toxic.settled(self._client_info, clients), clients, group)
        except UserError as error:
            raise UserError(f"the toxic ({toxic.type}): {error}") from None

    def _check_layer(self, toxic: Toxic, where: str) -> None:
        if toxic.below_messages and toxic.messages is not None:
            raise UserError(f"{where}: messages goes with layer message only; bytes have no type")
        if not self._relays and (toxic.below_messages or isinstance(toxic, Disconnect)):
            raise UserError(
                f"{where} acts on connections below the messages; start the injector with injector.tcp true"
            )

    def _place(self, name: str) -> int:
        for place, one in enumerate(self._entries):
            if one.toxic.name == name:
                return place
        names = _names(self._entries)
        raise UnknownNameError(
            f"there is no toxic {name!r}{nearest(name, names) if names else ', and no other'}"
        )


def _names(entries: Sequence[_Entry]) -> set[str]:
    return {one.toxic.name for one in entries}


def _created(entry: Any) -> Toxic:
    toxic = registry.create(entry, "the toxic")
    _check_numbers(registry.plain(toxic))
    return toxic


def _check(request: Any, depth: int = 0) -> None:
    """Who can reach the control port is not to read files by it, nor to keep it busy."""
    if depth > DEPTH_MAX:
        raise UserError(f"the request is more than {DEPTH_MAX} levels deep, expected the settings of a toxic")
    if isinstance(request, Mapping):
        for key, value in request.items():
            if key in FILE_KEYS and value is not None:
                raise UserError(f"{key} names a file, which only a scenario can; give what is in it instead")
            if key == "clients" and isinstance(value, list) and len(value) > CLIENTS_LISTED_MAX:
                raise UserError(
                    f"clients has {len(value)} entries, expected at most {CLIENTS_LISTED_MAX}; write ranges"
                )
            _check(value, depth + 1)
    elif isinstance(request, list):
        for value in request:
            _check(value, depth + 1)


def _check_numbers(plain: Any) -> None:
    """No number is so far from 1 that what is computed with it is infinite."""
    if isinstance(plain, Mapping):
        plain = list(plain.values())
    if isinstance(plain, list):
        for value in plain:
            _check_numbers(value)
    elif isinstance(plain, int | float) and plain and not NUMBER_MIN <= abs(plain) <= NUMBER_MAX:
        raise UserError(
            f"the toxic has the number {shown(plain)}, expected none over {NUMBER_MAX:g} or under {NUMBER_MIN:g}"
        )
