"""The way that messages take: through every toxic in turn, then along a line that keeps their order.

Everything that sends messages through a scenario does it here: the injector, the simulator, and the swarm of tests.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from unstale.toxics.in_flight import Direction, InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic


@dataclass(frozen=True, slots=True)
class Applied:
    """A toxic, settled, and whose messages it touches. clients: ids; None for all. group: those that its setting
    `clients` chooses from."""

    toxic: Toxic
    clients: frozenset[int] | None = None
    group: frozenset[int] | None = None

    def concerns(self, flight: InFlightMessage, at_s: float | None = None) -> bool:
        """Whether it touches such a message at a time, but for chance. at_s: None for when the message was sent."""
        toxic = self.toxic
        return (
            (self.clients is None or flight.client_id in self.clients)
            and toxic.direction in ("both", flight.direction)
            and (toxic.messages is None or flight.type in toxic.messages)
            and toxic.is_on(flight.sent_s if at_s is None else at_s)
        )


@dataclass(slots=True)
class _Channel:
    """One direction of one client's connection. free_s: when the message that keeps it to itself is through. last_s:
    when the last message comes out that keeps its place."""

    free_s: float = 0.0
    last_s: float = 0.0


class ToxicLink:
    """toxics: applied in this order; their names differ. seed: of the run.

    touched: how many messages each toxic changed, held up or destroyed, by its name; a message counts once.
    """

    def __init__(self, toxics: Sequence[Applied], seed: int) -> None:
        self._seed = seed
        self._lines: dict[tuple[int, Direction], _Channel] = {}
        self.touched: Counter[str] = Counter()
        self._touched_it: set[str] = set()  # the message that is being sent
        self.change(toxics)

    @property
    def toxics(self) -> Sequence[Applied]:
        """Those that apply now, in order."""
        return self._toxics

    def change(self, toxics: Sequence[Applied]) -> None:
        """From here on, these. What is under way stays under way."""
        self._toxics = tuple(toxics)
        draws = (ToxicRng(self._seed, applied.toxic.name) for applied in self._toxics)
        self._on_the_way = tuple(zip(self._toxics, draws, strict=True))
        self._at_the_end = tuple(
            (applied, rngs)
            for applied, rngs in self._on_the_way
            if type(applied.toxic).apply_at_the_end is not Toxic.apply_at_the_end
        )

    def send(self, flight: InFlightMessage) -> tuple[InFlightMessage, ...]:
        """How a message comes out: not at all, once, or several times. It must not have been sent before one that was
        sent earlier on its line.

        Messages of a line come out in the order in which they entered, as on TCP, unless a toxic says otherwise.
        """
        flights: tuple[InFlightMessage, ...] = (flight,)
        self._touched_it.clear()
        for applied, rngs in self._on_the_way:
            if applied.concerns(flight):
                flights = _numbered(
                    [out for one in flights for out in self._through(applied.toxic, one, rngs)]
                )
        return tuple(out for one in flights for out in self._in_order(one))

    def forget_client(self, client_id: int) -> None:
        """The client's connection is gone, and with it what was on it."""
        for direction in Direction:
            self._lines.pop((client_id, direction), None)

    def _through(self, toxic: Toxic, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        if flight.declined or flight.cuts or not rngs.are_below(toxic.toxicity, flight):
            return (flight,)  # the first two go no further
        return self._counted(toxic, flight, toxic.apply(flight, rngs))

    def _in_order(self, flight: InFlightMessage) -> tuple[InFlightMessage, ...]:
        line = self._lines.setdefault((flight.client_id, flight.direction), _Channel())
        due_s = flight.due_s
        if flight.occupies_s:
            due_s = line.free_s = max(due_s, line.free_s) + flight.occupies_s
        if flight.in_order:
            due_s = max(due_s, line.last_s)
        flights = self._when_client_is_away(flight if due_s == flight.due_s else replace(flight, due_s=due_s))
        line.last_s = max([line.last_s, *(one.due_s for one in flights if one.in_order)])
        return flights

    def _when_client_is_away(self, flight: InFlightMessage) -> tuple[InFlightMessage, ...]:
        """Past those that lie in wait at the end. Where one holds it up, it may meet another: hence the second loop."""
        flights: tuple[InFlightMessage, ...] = (flight,)
        for _ in self._at_the_end:
            before = flights
            for applied, rngs in self._at_the_end:
                flights = tuple(out for one in flights for out in self._out_of(applied, one, rngs))
            if flights == before:
                break
        return flights

    def _out_of(
        self, applied: Applied, flight: InFlightMessage, rngs: ToxicRng
    ) -> tuple[InFlightMessage, ...]:
        toxic = applied.toxic
        if flight.declined or flight.cuts or not applied.concerns(flight, flight.due_s):
            return (flight,)
        if not rngs.are_below(toxic.toxicity, flight):  # as when it entered: the draw is the same
            return (flight,)
        return self._counted(toxic, flight, toxic.apply_at_the_end(flight, rngs))

    def _counted(
        self, toxic: Toxic, flight: InFlightMessage, out: tuple[InFlightMessage, ...]
    ) -> tuple[InFlightMessage, ...]:
        if out != (flight,) and toxic.name not in self._touched_it:
            self._touched_it.add(toxic.name)
            self.touched[toxic.name] += 1
        return out


def _numbered(flights: list[InFlightMessage]) -> tuple[InFlightMessage, ...]:
    """The same, and no two with one number of a copy, as their draws would be the same."""
    if len(flights) < 2:
        return tuple(flights)
    taken: set[int] = set()
    numbered = []
    for flight in flights:
        copy = next(number for number in count(flight.copy) if number not in taken)
        taken.add(copy)
        numbered.append(flight if copy == flight.copy else replace(flight, copy=copy))
    return tuple(numbered)
