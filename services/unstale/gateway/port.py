"""The interface between the server's loop and its connections, wherever their sockets are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from unstale.gateway.transport import Transport
from unstale.net.connections import ConnectionLimits

Owner = str | int


class Incoming(NamedTuple):
    """A message of a client. frames: its payload, valid until the next one is received."""

    route: bytes
    header: bytes
    frames: Sequence[memoryview]
    key: str | None  # proved by the handshake; None in plain text


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSettings:
    """What the sockets need to know of a run."""

    address: str
    keys: str | None  # folder; None for plain text
    heartbeat_s: float
    linger_s: float
    limits: ConnectionLimits
    memory_bytes_max: int  # of the server with its gateways
    gateways: int = 0  # of the server; 0 where it has the sockets itself
    update_bytes_max: int  # longest payload of a client without encoding


class Counts(NamedTuple):
    """Connections that speak for a client, others, and addresses whose attempts to connect are limited."""

    clients: int
    strangers: int
    addresses_limited: int


NO_CONNECTIONS = Counts(0, 0, 0)


class Port(Transport, Protocol):
    """Receives from all connections, and sends to each. One thread, except where a method says otherwise."""

    address: str

    def wait(self, queue: int, timeout_ms: int | None) -> bool:
        """Wait for messages, for the descriptor of a queue, or for so long. Whether the queue is readable."""
        ...

    def receive(self) -> Iterator[Incoming]:
        """A bounded number of messages, if any."""
        ...

    @property
    def more_waits(self) -> bool:
        """Whether messages may wait that were not received."""
        ...

    def turned(self) -> None:
        """All messages received so far are handled."""
        ...

    def may_speak(self, key: str | None, client_id: int) -> bool:
        """Whether a key owns a client now. Any thread."""
        ...

    def owner_of(self, key: str | None, client_id: int) -> Owner:
        """With whom a client shares its limits. Any thread."""
        ...

    def counts(self) -> Counts:
        """Any thread."""
        ...

    def close(self) -> None:
        """Send what waits, for at most the linger time, and end. Twice is allowed."""
        ...
