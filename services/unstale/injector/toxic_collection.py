"""The current toxics of an injector: of its scenario, and of the operator.

An invalid request raises UserError, UnknownNameError for a missing toxic, and changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Any

from pydantic import Field

from unstale.config.scenario import FILE_KEYS
from unstale.errors import UserError, nearest
from unstale.settings.values import Section
from unstale.toxics import registry
from unstale.toxics.client_filter import ClientInfo
from unstale.toxics.disconnect import Disconnect
from unstale.toxics.link import Applied
from unstale.toxics.scenario import unused
from unstale.toxics.toxic import Toxic
from unstale.toxics.validation import shown, validated

TOXICS_MAX = 100  # every message passes each
BLACKOUT = "blackout now"
# Bounds on requests, for time and memory.
CLIENTS_LISTED_MAX = 1000
DEPTH_MAX = 20
NUMBER_MIN, NUMBER_MAX = 1e-12, 1e12


class UnknownNameError(UserError):
    """No toxic has this name."""


class _BlackoutRequest(Section):
    seconds: float = Field(gt=0, le=1e9, strict=True)
    clients: Any = None  # checked as settings of the toxic
    layer: Any = None


@dataclass(eq=False)
class ToxicCollection:
    """The current toxics, in order.

    A shallow copy is independent of the original, so that changes can be prepared in another thread.
    """

    toxics: InitVar[Sequence[Applied]]  # of the scenario, settled
    _: KW_ONLY
    client_info: ClientInfo
    seed: int  # of the run
    relays: bool  # whether there is a relay below the messages, which the layer tcp needs

    def __post_init__(self, toxics: Sequence[Applied]) -> None:
        # Dictionaries and sets are replaced, never changed, because copies share them.
        self._of_scenario = {applied.toxic.name: applied for applied in toxics}
        self._by_name = self._of_scenario
        self._temporary: frozenset[str] = frozenset()  # names of blackouts that are deleted after their end
        for applied in toxics:
            self._check_layer(applied.toxic, f"toxic {applied.toxic.name!r}")

    @property
    def applied(self) -> tuple[Applied, ...]:
        return tuple(self._by_name.values())

    @property
    def of_messages(self) -> tuple[Applied, ...]:
        return tuple(one for one in self.applied if not one.toxic.below_messages)

    @property
    def of_bytes(self) -> tuple[Applied, ...]:
        """The toxics of the relay; without a relay there are none."""
        return tuple(one for one in self.applied if one.toxic.below_messages)

    def listed(self) -> list[dict[str, Any]]:
        """All toxics as plain data, with the number of clients that each `touches`."""
        return [self.describe(name) for name in self._by_name]

    def describe(self, name: str) -> dict[str, Any]:
        applied = self._find(name)
        count = self.client_info.clients if applied.clients is None else len(applied.clients)
        return {**registry.plain(applied.toxic), "touches": count}

    def add(self, entry: Any) -> str:
        """Append a toxic and return its name. entry: as in a scenario."""
        _check_request(entry)
        toxic = _created(entry)
        name = toxic.name or unused(toxic.type, set(self._by_name))
        self._by_name = self._with(self._by_name, toxic.model_copy(update={"name": name}))
        return name

    def change(self, name: str, changes: Any) -> str:
        """Change settings of a toxic, which keeps its position, and return its name. null: the default."""
        before = self._find(name)
        _check_request(changes)
        if not isinstance(changes, Mapping):
            raise UserError("expected a JSON object with the settings that change")
        for key in ("name", "type"):
            if key in changes:
                raise UserError(f"{key} cannot be changed; add another toxic and remove this one")
        merged = {**registry.plain(before.toxic), **changes}
        toxic = _created({key: value for key, value in merged.items() if value is not None})
        applied = self._settled(toxic, before.group)
        if "clients" not in changes:
            applied = replace(applied, clients=before.clients)
        self._by_name = {**self._by_name, name: applied}
        self._temporary -= {name}
        return name

    def remove(self, name: str) -> None:
        self._find(name)
        self._by_name = {key: one for key, one in self._by_name.items() if key != name}
        self._temporary -= {name}

    def reset(self) -> None:
        """Restore the toxics of the scenario."""
        self._by_name = self._of_scenario
        self._temporary = frozenset()

    def black_out(self, entry: Any, at_s: float) -> str:
        """Append a blackout that begins now, delete those that ended, and return its name.

        Args:
            entry: plain data with `seconds`, and optionally `clients` and `layer`.
            at_s: time of the scenario.
        """
        request = validated(_BlackoutRequest, entry, "the blackout")
        settings = request.model_dump(exclude_none=True, exclude={"seconds"})
        _check_request(settings)
        current = {
            name: one
            for name, one in self._by_name.items()
            if name not in self._temporary or (one.toxic.end_s or 0.0) > at_s
        }
        name = unused(BLACKOUT, set(current))
        window = {"start_s": at_s, "end_s": at_s + request.seconds}
        self._by_name = self._with(current, _created({"type": "blackout", "name": name, **window, **settings}))
        self._temporary |= {name}
        return name

    # --- implementation ---

    def _find(self, name: str) -> Applied:
        if name not in self._by_name:
            advice = nearest(name, self._by_name) if self._by_name else ", and no other"
            raise UnknownNameError(f"there is no toxic {name!r}{advice}")
        return self._by_name[name]

    def _with(self, current: Mapping[str, Applied], toxic: Toxic) -> dict[str, Applied]:
        """The toxics of `current` and a new one."""
        if len(current) >= TOXICS_MAX:
            raise UserError(f"there are {TOXICS_MAX} toxics, the most that is allowed; remove one first")
        if toxic.name in current:
            raise UserError(f"there is a toxic {toxic.name!r} already; change that, or give this another name")
        return {**current, toxic.name: self._settled(toxic, None)}

    def _settled(self, toxic: Toxic, group: frozenset[int] | None) -> Applied:
        where = f"the toxic ({toxic.type})"
        self._check_layer(toxic, where)
        return Applied.settled(toxic, self.client_info, self.seed, group, where)

    def _check_layer(self, toxic: Toxic, where: str) -> None:
        if toxic.below_messages and toxic.messages is not None:
            raise UserError(f"{where}: messages goes with layer message only; bytes have no type")
        if not self.relays and needs_relay(toxic):
            raise UserError(
                f"{where} acts on connections below the messages; start the injector with injector.tcp true"
            )


def needs_relay(toxic: Toxic) -> bool:
    return toxic.below_messages or isinstance(toxic, Disconnect)


def _created(entry: Any) -> Toxic:
    """Make a toxic, whose numbers must not lead to infinite results."""
    toxic = registry.create(entry, "the toxic")
    for _, value in _settings(registry.plain(toxic)):
        if isinstance(value, int | float) and value and not NUMBER_MIN <= abs(value) <= NUMBER_MAX:
            raise UserError(
                f"the toxic has the number {shown(value)}, expected none over {NUMBER_MAX:g} or under {NUMBER_MIN:g}"
            )
    return toxic


def _check_request(request: Any) -> None:
    """Refuse requests that read files or occupy the injector for long."""
    for key, value in _settings(request):
        if key in FILE_KEYS and value is not None:
            raise UserError(f"{key} names a file, which only a scenario can; give its content instead")
        if key == "clients" and isinstance(value, list) and len(value) > CLIENTS_LISTED_MAX:
            raise UserError(f"clients has {len(value)} entries, expected at most {CLIENTS_LISTED_MAX}; write ranges")


def _settings(data: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """All values of nested plain data, with their keys."""
    if depth > DEPTH_MAX:
        raise UserError(f"the request is more than {DEPTH_MAX} levels deep, expected the settings of a toxic")
    yield key, data
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from _settings(value, name, depth + 1)
    elif isinstance(data, list):
        for value in data:
            yield from _settings(value, key, depth + 1)
