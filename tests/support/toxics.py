"""Helpers of toxic tests: messages in flight, toxics from plain data, and a written-out population."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from unstale.toxics.in_flight import Direction, InFlightMessage, MessageType
from unstale.toxics.link import Applied, ToxicLink
from unstale.toxics.registry import create
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic

UP, DOWN = Direction.UP, Direction.DOWN
SEED = 7

_TRAFFIC: tuple[tuple[Direction, MessageType], ...] = (
    (DOWN, "task"),
    (UP, "update"),
    (DOWN, "ack"),
    (UP, "heartbeat"),
    (DOWN, "welcome"),
    (UP, "hello"),
    (DOWN, "stop"),
    (UP, "bye"),
    (UP, "error"),
    (DOWN, "error"),
)


def message(**fields: Any) -> InFlightMessage:
    """An update of 1000 bytes from client 0, sent at 0 s without delay, except for the arguments."""
    sent_s = fields.get("sent_s", 0.0)
    default = {"client_id": 0, "direction": UP, "type": "update", "number": 1, "size_bytes": 1000}
    times = {"sent_s": sent_s, "due_s": sent_s, "began_s": sent_s}
    return InFlightMessage(**{**default, **times, **fields})


def task(**fields: Any) -> InFlightMessage:
    """The same of a task."""
    return message(**{"direction": DOWN, "type": "task", "version": 0, **fields})


def traffic(clients: int = 5) -> Iterator[InFlightMessage]:
    """An endless sequence of messages of every type: one each 10 ms, of each client in turn."""
    for number in count():
        direction, type_ = _TRAFFIC[number % len(_TRAFFIC)]
        sent_s = number * 0.01
        yield message(
            client_id=number // len(_TRAFFIC) % clients,
            direction=direction,
            type=type_,
            number=number,
            sent_s=sent_s,
            began_s=sent_s - 0.5 if type_ == "update" else sent_s,
            version=number if type_ == "task" else None,
            header_bytes=100,
        )


def toxic(**settings: Any) -> Toxic:
    """A toxic from plain data; its default name is its type."""
    return create({"name": settings["type"], **settings}, "here")


def draws(seed: int = SEED, name: str = "toxic") -> ToxicRng:
    return ToxicRng(seed, name)


def passage(*toxics: Mapping[str, Any], seed: int = SEED, clients: frozenset[int] | None = None) -> ToxicLink:
    """Through toxics given as plain data."""
    return ToxicLink([Applied(toxic(**one), clients) for one in toxics], seed)


def dues_s(way: ToxicLink, flights: Iterable[InFlightMessage]) -> list[list[float]]:
    """The delivery times of each message: none, one or several."""
    return [[out.due_s for out in way.send(flight)] for flight in flights]


@dataclass(frozen=True)
class Written:
    """A population. labels: of each client, the classes that it holds."""

    labels: Sequence[Sequence[int]]
    classes: int = 10

    @property
    def clients(self) -> int:
        return len(self.labels)

    def holders(self, label: int) -> Sequence[int]:
        return [client for client, held in enumerate(self.labels) if label in held]

    def smallest_class(self, client_id: int) -> int:
        return min(self.labels[client_id])
