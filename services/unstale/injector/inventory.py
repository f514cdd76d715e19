"""The toxics that an injector applies now: those of its scenario, and what its operator adds or takes away. Pure.

A request that is not valid raises UserError, UnknownNameError for a toxic that is not there, and changes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from unstale.config.scenario import FILE_KEYS
from unstale.errors import UserError, nearest
from unstale.toxics import registry
from unstale.toxics.disconnect import Disconnect
from unstale.toxics.passage import Applied
from unstale.toxics.population import Population
from unstale.toxics.toxic import Toxic

TOXICS_MAX = 100  # every message goes through each
BLACKOUT = "blackout now"


class UnknownNameError(UserError):
    """There is no toxic of this name."""


class Inventory:
    """toxics: of the scenario, settled. seed: of the run. relays: whether there is a relay below the messages, which
    the tcp layer needs. `applied`: all that there are now, in order; their names differ.
    """

    def __init__(self, toxics: Sequence[Applied], *, population: Population, seed: int, relays: bool) -> None:
        self._of_scenario = tuple(toxics)
        self._population = population
        self._seed = seed
        self._relays = relays
        self._applied = self._of_scenario
        for applied in toxics:
            self._check_layer(applied.toxic, f"toxic {applied.toxic.name!r}")

    @property
    def applied(self) -> tuple[Applied, ...]:
        return self._applied

    @property
    def of_messages(self) -> tuple[Applied, ...]:
        """Those that messages go through."""
        return tuple(one for one in self._applied if not (self._relays and one.toxic.below_messages))

    @property
    def of_bytes(self) -> tuple[Applied, ...]:
        """Those that the relay carries out."""
        return tuple(one for one in self._applied if self._relays and one.toxic.below_messages)

    def listed(self) -> list[dict[str, Any]]:
        """All of them, as plain data: `touches` says how many clients, the rest could be posted again."""
        return [self._described(one) for one in self._applied]

    def found(self, name: str) -> dict[str, Any]:
        """One of them, as plain data."""
        return self._described(self._applied[self._place(name)])

    def add(self, entry: Any) -> str:
        """Add a toxic behind the others. entry: as in a scenario. Its name."""
        if len(self._applied) >= TOXICS_MAX:
            raise UserError(f"there are {TOXICS_MAX} toxics, the most that is allowed; remove one first")
        toxic = _created(entry)
        if not toxic.name:
            toxic = toxic.model_copy(update={"name": self._unused(toxic.type)})
        elif toxic.name in self._names():
            raise UserError(
                f"there is a toxic {toxic.name!r} already; change that, or give this another name"
            )
        self._applied = (*self._applied, self._settled(toxic, None))
        return toxic.name

    def change(self, name: str, changes: Any) -> None:
        """Change settings of a toxic, which keeps its name, type and place. changes: those settings; null: default."""
        place = self._place(name)
        before = self._applied[place]
        if not isinstance(changes, Mapping):
            raise UserError("expected a JSON object with the settings that change")
        for key in ("name", "type"):
            if key in changes:
                raise UserError(f"{key} cannot be changed; add another toxic and remove this one")
        merged = {**registry.plain(before.toxic), **changes}
        toxic = _created({key: value for key, value in merged.items() if value is not None})
        clients = before.clients if "clients" not in changes else None
        changed = self._settled(toxic, clients)
        self._applied = (*self._applied[:place], changed, *self._applied[place + 1 :])

    def remove(self, name: str) -> None:
        """Take a toxic away."""
        place = self._place(name)
        self._applied = (*self._applied[:place], *self._applied[place + 1 :])

    def reset(self) -> None:
        """Back to those of the scenario."""
        self._applied = self._of_scenario

    def black_out(self, entry: Any, at_s: float) -> str:
        """A blackout from now on. entry: `seconds`, and if it likes `clients` and `layer`. at_s: of the scenario."""
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
        if isinstance(seconds, bool) or not 0 < seconds < float("inf"):
            raise UserError(f"seconds is {seconds}, expected more than 0")
        self._applied = tuple(one for one in self._applied if not self._is_over(one.toxic, at_s))
        others = {key: value for key, value in entry.items() if key != "seconds"}
        window = {"start_s": at_s, "end_s": at_s + seconds}
        return self.add({"type": "blackout", "name": self._unused(BLACKOUT), **window, **others})

    # --- parts of it ---

    def _is_over(self, toxic: Toxic, at_s: float) -> bool:
        """Whether it was a blackout by `black_out`, and has ended: they would pile up."""
        return toxic.name.startswith(BLACKOUT) and toxic.end_s is not None and toxic.end_s <= at_s

    def _described(self, applied: Applied) -> dict[str, Any]:
        count = self._population.clients if applied.clients is None else len(applied.clients)
        return {**registry.plain(applied.toxic), "touches": count}

    def _settled(self, toxic: Toxic, clients: frozenset[int] | None) -> Applied:
        """clients: those that it is about if it does not say so itself; None for all."""
        self._check_layer(toxic, f"the toxic ({toxic.type})")
        if toxic.clients is not None:
            clients = toxic.clients.resolve(self._population, self._seed, toxic.name)
        if clients is not None and len(clients) == self._population.clients:
            clients = None
        try:
            return Applied(toxic.settled(self._population, clients), clients)
        except UserError as error:
            raise UserError(f"the toxic ({toxic.type}): {error}") from None

    def _check_layer(self, toxic: Toxic, where: str) -> None:
        if toxic.below_messages and toxic.messages is not None:
            raise UserError(f"{where}: messages goes with layer message only; bytes have no type")
        if not self._relays and (toxic.below_messages or isinstance(toxic, Disconnect)):
            raise UserError(
                f"{where} acts on connections below the messages; start the injector with injector.tcp true"
            )

    def _names(self) -> set[str]:
        return {one.toxic.name for one in self._applied}

    def _unused(self, name: str) -> str:
        taken, count, free = self._names(), 1, name
        while free in taken:
            count += 1
            free = f"{name}-{count}"
        return free

    def _place(self, name: str) -> int:
        for place, one in enumerate(self._applied):
            if one.toxic.name == name:
                return place
        names = self._names()
        raise UnknownNameError(
            f"there is no toxic {name!r}{nearest(name, names) if names else ', and no other'}"
        )


def _created(entry: Any) -> Toxic:
    _refuse_files(entry)
    return registry.create(entry, "the toxic")


def _refuse_files(entry: Any) -> None:
    """Who can reach the control port is not to read files by it."""
    if isinstance(entry, Mapping):
        for key, value in entry.items():
            if key in FILE_KEYS and value is not None:
                raise UserError(f"{key} names a file, which only a scenario can; give what is in it instead")
            _refuse_files(value)
    elif isinstance(entry, list):
        for value in entry:
            _refuse_files(value)
