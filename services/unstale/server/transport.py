"""What the server protocol needs of whatever carries messages: a ROUTER socket, or a network that is played."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol


class Delivery(Enum):
    """What became of a message that was to be sent."""

    SENT = "sent"  # it is on its way; whether it arrives is another matter
    GONE = "gone"  # there is no such connection any more
    FULL = "full"  # so much waits there unread that no more is taken


class Transport(Protocol):
    """Sends to connections, each known by its routing id. Never waits."""

    def wrap(self, frames: Sequence[memoryview]) -> Sequence[Any]:
        """Payload frames in the form in which `send` takes them, made once however often they are sent."""
        ...

    def send(self, route: bytes, header: bytes, frames: Sequence[Any] = ()) -> Delivery:
        """One message to one connection. frames: as `wrap` made them."""
        ...
