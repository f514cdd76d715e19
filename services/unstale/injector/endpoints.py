"""Both sides of the proxy, and its bounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import zmq

from unstale.net.handshakes import Handshakes
from unstale.net.limiter import ConnectionLimiter
from unstale.net.zap import ZapAuthenticator


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The side of the clients.

    Attributes:
        socket: bound.
        authenticator: answers its handshakes.
        limiter: of its connections.
        refused: handshakes that the gate refused, by reason; counted elsewhere.
    """

    socket: zmq.Socket[bytes]
    authenticator: ZapAuthenticator
    limiter: ConnectionLimiter
    refused: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The side of the server.

    Attributes:
        address: of the server.
        probe: connects to the server, to find out whether it is there.
        connect: makes a connection for one client.
    """

    address: str
    probe: Handshakes
    connect: Callable[[], zmq.Socket[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyBounds:
    """Bounds of the proxy.

    Attributes:
        connections_max: messages on further connections are dropped.
        bytes_max: of messages that are held.
        patience_s: time to reach the server at the start, in seconds; None for any time.
    """

    connections_max: int
    bytes_max: int
    patience_s: float | None
