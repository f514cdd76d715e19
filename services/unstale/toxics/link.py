"""The link of a scenario: messages pass all toxics, then an ordered channel.

Injector, simulator and the swarm tests send all messages through it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Self

from unstale.toxics.client_filter import ClientInfo
from unstale.toxics.in_flight import Direction, InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic
from unstale.toxics.validation import errors_at


@dataclass(frozen=True, slots=True)
class Applied:
    """A toxic and its clients."""

    toxic: Toxic
    clients: frozenset[int] | None = None  # ids; None for all
    group: frozenset[int] | None = None  # ids from which its setting `clients` selects

    @classmethod
    def settled(
        cls, toxic: Toxic, client_info: ClientInfo, seed: int, group: frozenset[int] | None, where: str
    ) -> Self:
        """Settle a toxic for the clients of a run. Raises UserError, prefixed by where."""
        with errors_at(where):
            clients = group
            if toxic.clients is not None:
                clients = toxic.clients.resolve(client_info, seed, toxic.name, group)
            if clients is not None and len(clients) == client_info.clients:
                clients = None
            return cls(toxic.settled(client_info, clients), clients, group)

    def concerns(self, flight: InFlightMessage, at_s: float) -> bool:
        """Whether the toxic may touch such a message at a time."""
        toxic = self.toxic
        return (
            (self.clients is None or flight.client_id in self.clients)
            and toxic.direction in ("both", flight.direction)
            and (toxic.messages is None or flight.type in toxic.messages)
            and toxic.is_on(at_s)
        )


@dataclass(slots=True)
class Counts:
    """Messages changed, delayed or destroyed; a message counts once for each toxic."""

    touched: Counter[str] = field(default_factory=Counter)  # by name of current toxics
    faults: Counter[str] = field(default_factory=Counter)  # by type, since the start

    def change(self, toxics: Iterable[Applied]) -> None:
        """Forget the names of removed toxics, and list the types of new ones."""
        names = {one.toxic.name: one.toxic.type for one in toxics}
        for name in self.touched.keys() - names.keys():
            del self.touched[name]
        self.faults.update(dict.fromkeys(names.values(), 0))


@dataclass(slots=True)
class _Channel:
    """One direction of one client's connection."""

    free_s: float = 0.0  # end of the last message that occupies it alone
    last_s: float = 0.0  # when the last message that keeps its order comes out


class ToxicLink:
    """A link with toxics, applied in this order; their names differ.

    seed: of the run. counts: shared with other links; None for its own.
    """

    def __init__(self, toxics: Sequence[Applied], seed: int, counts: Counts | None = None) -> None:
        self._seed = seed
        self._channels: dict[tuple[int, Direction], _Channel] = {}
        self.counts = counts or Counts()
        self._touched_by: set[str] = set()  # toxics that touched the current message
        self.change(toxics)

    def change(self, toxics: Sequence[Applied]) -> None:
        """Replace the toxics. Messages in flight are not affected."""
        self.toxics = tuple(toxics)
        self.counts.change(self.toxics)
        self._at_start = tuple((one, ToxicRng(self._seed, one.toxic.name)) for one in self.toxics)
        self._at_end = tuple(
            (applied, rngs)
            for applied, rngs in self._at_start
            if type(applied.toxic).apply_at_the_end is not Toxic.apply_at_the_end
        )

    def send(self, flight: InFlightMessage) -> tuple[InFlightMessage, ...]:
        """The messages that come out: none, one, or several.

        Call it in the order in which messages of a channel enter. They come out in this order, as on TCP, unless a
        toxic changes it.
        """
        flights: tuple[InFlightMessage, ...] = (flight,)
        self._touched_by.clear()
        for applied, rngs in self._at_start:
            if applied.concerns(flight, flight.sent_s):
                flights = _numbered([out for one in flights for out in self._touch(applied, rngs, one)])
        return tuple(out for one in flights for out in self._in_order(one))

    def forget_client(self, client_id: int) -> None:
        """Reset the channels of a client whose connection ended."""
        for direction in Direction:
            self._channels.pop((client_id, direction), None)

    def _touch(
        self, applied: Applied, rngs: ToxicRng, flight: InFlightMessage, *, at_the_end: bool = False
    ) -> tuple[InFlightMessage, ...]:
        # The draw of toxicity is equal at the start and at the end. Nothing touches a declined task or a cut.
        toxic = applied.toxic
        if flight.declined or flight.cuts or not rngs.selects(toxic.toxicity, flight):
            return (flight,)
        flights = toxic.apply_at_the_end(flight, rngs) if at_the_end else toxic.apply(flight, rngs)
        if flights != (flight,) and toxic.name not in self._touched_by:
            self._touched_by.add(toxic.name)
            self.counts.touched[toxic.name] += 1
            self.counts.faults[toxic.type] += 1
        return flights

    def _in_order(self, flight: InFlightMessage) -> tuple[InFlightMessage, ...]:
        channel = self._channels.setdefault((flight.client_id, flight.direction), _Channel())
        due_s = flight.due_s
        if flight.occupies_s:
            due_s = channel.free_s = max(due_s, channel.free_s) + flight.occupies_s
        if flight.in_order:
            due_s = max(due_s, channel.last_s)
        flights = self._past_end(flight if due_s == flight.due_s else replace(flight, due_s=due_s))
        channel.last_s = max([channel.last_s, *(one.due_s for one in flights if one.in_order)])
        return flights

    def _past_end(self, flight: InFlightMessage) -> tuple[InFlightMessage, ...]:
        """Apply toxics at the end, again if a delay by one may lead into another."""
        flights = [flight]
        for _ in self._at_end:
            before = flights
            for applied, rngs in self._at_end:
                entering, flights = flights, []
                for one in entering:
                    concerned = applied.concerns(one, one.due_s)
                    flights += self._touch(applied, rngs, one, at_the_end=True) if concerned else [one]
            if flights == before:
                break
        return tuple(flights)


def _numbered(flights: list[InFlightMessage]) -> tuple[InFlightMessage, ...]:
    """The same messages with different numbers of copies, which key their draws."""
    if len(flights) < 2:
        return tuple(flights)
    taken: set[int] = set()
    numbered = []
    for flight in flights:
        copy = next(number for number in count(flight.copy) if number not in taken)
        taken.add(copy)
        numbered.append(flight if copy == flight.copy else replace(flight, copy=copy))
    return tuple(numbered)
