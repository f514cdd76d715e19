"""The random numbers of one toxic: keyed by toxic, client and message, and by nothing else.

So a scenario repeats exactly, whatever the order in which messages arrive. A generator costs 20 us and is made only
when it is asked for.
"""

from typing import Any
from zlib import crc32

from unstale.seeds import Generator, Stream, stream
from unstale.toxics.in_flight import MESSAGE_TYPES, Direction, InFlightMessage

_DIRECTIONS = (Direction.UP, Direction.DOWN)
_OF_MESSAGES, _OF_CLIENTS, _OF_TOXICITY = 0, 1, 2


class ToxicRng:
    """seed: of the run. name: of the toxic, which is unique in a scenario.

    kept: what a toxic worked out from these draws for a client and needs again. It saves time and changes nothing.
    """

    def __init__(self, seed: int, name: str) -> None:
        self.seed = seed
        self.kept: dict[int, Any] = {}
        self._key = crc32(name.encode())

    def of_message(self, flight: InFlightMessage) -> Generator:
        """A generator for what happens to one message."""
        return self._of(_OF_MESSAGES, flight)

    def are_below(self, toxicity: float, flight: InFlightMessage) -> bool:
        """Whether a message belongs to the share that is touched."""
        return toxicity >= 1 or float(self._of(_OF_TOXICITY, flight).random()) < toxicity

    def of_client(self, client_id: int, chapter: int = 0) -> Generator:
        """A generator for what belongs to a client for good. chapter: of a sequence that has no end."""
        return stream(self.seed, Stream.TOXICS, self._key, _OF_CLIENTS, client_id, chapter)

    def _of(self, what: int, flight: InFlightMessage) -> Generator:
        return stream(
            self.seed,
            Stream.TOXICS,
            self._key,
            what,
            flight.client_id,
            _DIRECTIONS.index(flight.direction),
            MESSAGE_TYPES.index(flight.type),
            flight.number,
            flight.attempt,
            flight.copy,
        )
