"""Random numbers of one toxic, which depend on run seed, toxic, client and message only.

A scenario therefore repeats exactly in any order of arrival. A generator costs 20 us, so it is made on demand.
"""

from typing import Any
from zlib import crc32

from unstale.seeds import Generator, Stream, stream
from unstale.toxics.in_flight import MESSAGE_TYPES, Direction, InFlightMessage

_DIRECTIONS = (Direction.UP, Direction.DOWN)
_OF_MESSAGES, _OF_CLIENTS, _OF_TOXICITY = 0, 1, 2  # part of the key: another value changes all draws


class ToxicRng:
    """Generators of one toxic. seed: of the run. name: of the toxic, unique in a scenario."""

    def __init__(self, seed: int, name: str) -> None:
        self.seed = seed
        self.cache: dict[int, Any] = {}  # for the toxic: values that it derives from its draws, by client
        self._key = crc32(name.encode())

    def of_message(self, flight: InFlightMessage) -> Generator:
        """A generator for the effects on one message; each call starts the same sequence."""
        return self._keyed(_OF_MESSAGES, flight)

    def selects(self, toxicity: float, flight: InFlightMessage) -> bool:
        """Whether a message is in the random share `toxicity` of the messages."""
        return toxicity >= 1 or float(self._keyed(_OF_TOXICITY, flight).random()) < toxicity

    def of_client(self, client_id: int, time_slice: int = 0) -> Generator:
        """A generator for a client. time_slice: its index, for a toxic with a generator for each slice."""
        return stream(self.seed, Stream.TOXICS, self._key, _OF_CLIENTS, client_id, time_slice)

    def _keyed(self, purpose: int, flight: InFlightMessage) -> Generator:
        direction, type_ = _DIRECTIONS.index(flight.direction), MESSAGE_TYPES.index(flight.type)
        message = (flight.client_id, direction, type_, flight.number, flight.attempt, flight.copy)
        return stream(self.seed, Stream.TOXICS, self._key, purpose, *message)
