"""The interface between the server protocol and a ROUTER socket, or a simulated network."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol


class Delivery(Enum):
    """Result of sending a message."""

    SENT = "sent"  # it may still be lost
    GONE = "gone"  # the connection is closed
    FULL = "full"  # the queue of the connection is full


class Transport(Protocol):
    """Sends to connections, each known by its routing id. Never waits."""

    def wrap(self, frames: Sequence[memoryview]) -> Sequence[Any]:
        """Payload frames in the form in which `send` takes them, made once however often they are sent."""
        ...

    def send(self, route: bytes, header: bytes, frames: Sequence[Any] = ()) -> Delivery:
        """One message to one connection. frames: as `wrap` made them."""
        ...
