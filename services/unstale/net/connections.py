"""The connections to one bound socket: how many there may be, and how much each may make the process hold.

Pure: the clock, the bytes that were read and the end of a connection are the caller's (`ConnectionLimiter`). A
connection is a stranger until it speaks for a client, and again when it no longer does. Caps count strangers only.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

from unstale.net.arrivals import Arrivals
from unstale.net.tcp import Peer
from unstale_proto.limits import CLIENTS_MAX, HEADER_BYTES_MAX

TOO_MANY, NO_HELLO, MESSAGE_TOO_LONG = "too-many", "no-hello", "message-too-long"
TOO_MANY_FRAMES, MEMORY = "too-many-frames", "memory"
REASONS = (TOO_MANY, NO_HELLO, MESSAGE_TOO_LONG, TOO_MANY_FRAMES, MEMORY)

HANDSHAKE_BYTES = 4096  # a CURVE handshake has about 700 bytes
STRANGER_BYTES_MAX = HEADER_BYTES_MAX + HANDSHAKE_BYTES  # a stranger has nothing to send but a hello
SPARE_STRANGERS = 256  # beside one for each client: processes that take over, checks of ports, and mistakes
IPV6_SITE_BITS = 64  # whoever has one address of IPv6 has all those that begin so


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What connections may use.

    Attributes:
        strangers_max: connections that speak for no client.
        connections_max: connections in total, as the limit of open files allows.
        hello_s: within so long a connection speaks for a client; seconds.
        unread_bytes_max: bytes of all connections that were read, and of which no whole message was handed on.
        messages_ahead: whole messages of a client that libzmq reads ahead.
    """

    strangers_max: int = CLIENTS_MAX
    connections_max: int = CLIENTS_MAX
    hello_s: float = 15.0
    unread_bytes_max: int = 2**30
    messages_ahead: int = 8


@dataclass(slots=True, eq=False)
class Connection:
    """One connection.

    Attributes:
        fd: descriptor, of libzmq.
        site: address, or the first 64 bits of an IPv6 address.
        since_s: when it was accepted, or last spoke for a client; seconds.
        route: routing id, once a message came. Written by the thread of the socket.
        messages: whole messages handed on. Written by the thread of the socket.
        seen: the same when it was last sampled.
        base_bytes: bytes read when a whole message was last handed on.
        held_bytes: bytes read since.
        suspected: turn at which it first held more than one message may have; None where it does not.
        is_stranger: whether it counts as one.
        was_client: whether it ever spoke for a client.
        reason: why it was cut; None while it was not.
    """

    fd: int
    peer: Peer
    site: str
    since_s: float
    route: bytes | None = None
    messages: int = 0
    seen: int = 0
    base_bytes: int = 0
    held_bytes: int = 0
    suspected: int | None = None
    is_stranger: bool = True
    was_client: bool = False
    reason: str | None = None


@dataclass(slots=True)
class ConnectionTable:
    """All connections. Written by one thread, but for what `heard` writes.

    Attributes:
        limits: of connections.
        is_client: whether a routing id speaks for a client now.
        message_bytes_max: payload and header of the longest message that a client may send.
        arrivals: what came of connections, by address.
        held_bytes: of all connections.
    """

    limits: ConnectionLimits
    is_client: Callable[[bytes], bool]
    message_bytes_max: int
    arrivals: Arrivals
    held_bytes: int = 0
    _by_fd: dict[int, Connection] = field(default_factory=dict)
    _strangers: dict[str, dict[int, Connection]] = field(default_factory=dict)  # by site, the oldest first
    _routes: dict[int, bytes] = field(default_factory=dict)  # heard before their connection was
    _suspects: set[Connection] = field(default_factory=set)
    _cut: int = 0  # connections that were cut and have not ended yet
    strangers: int = 0

    def __len__(self) -> int:
        return len(self._by_fd)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._by_fd.values())

    @property
    def clients(self) -> int:
        """Connections that speak for a client, as of the last `sweep`."""
        return max(0, len(self._by_fd) - self._cut - self.strangers)

    @property
    def is_crowded(self) -> bool:
        """Whether three quarters of the descriptors for connections are used."""
        return 4 * len(self._by_fd) > 3 * self.limits.connections_max

    @property
    def suspects(self) -> list[Connection]:
        """Connections that hold more than one message may have."""
        return list(self._suspects)

    def get(self, fd: int) -> Connection | None:
        """The connection with a descriptor. Any thread."""
        return self._by_fd.get(fd)

    def heard(self, fd: int, route: bytes) -> None:
        """A whole message came over a connection. The thread of the socket, which may be ahead of `accepted`."""
        connection = self._by_fd.get(fd)
        if connection is None or connection.route not in (None, route):
            self._routes[fd] = route  # of a connection to come, or a later one with this descriptor
        if connection is not None:
            connection.route = route
            connection.messages += 1

    def accepted(self, fd: int, peer: Peer, at_s: float) -> Connection:
        """There is a new connection; one that had its descriptor before has ended."""
        self.closed(fd)
        connection = Connection(fd, peer, site_of(peer[0]), at_s, route=self._routes.pop(fd, None))
        self._by_fd[fd] = connection
        self._strangers.setdefault(connection.site, {})[fd] = connection
        self.strangers += 1
        return connection

    def closed(self, fd: int) -> None:
        """A connection has ended."""
        connection = self._by_fd.pop(fd, None)
        if connection is not None:
            if connection.reason is None:
                self._ended(connection)
            else:
                self._cut -= 1

    def cut(self, connection: Connection, reason: str) -> None:
        """A connection is being ended: libzmq frees what it held, and it counts no more."""
        if connection.reason is None and self._by_fd.get(connection.fd) is connection:
            connection.reason = reason
            self._cut += 1
            self._ended(connection)

    def surplus(self) -> list[Connection]:
        """Strangers over the caps, which are cut: each time the oldest one of the site that has most."""
        over = []
        while self._is_over():
            of_site = max(self._strangers.values(), key=len)
            connection = next(iter(of_site.values()))
            if self._speaks(connection):
                self._remove_stranger(connection)
            else:
                self.cut(connection, TOO_MANY)
                over.append(connection)
        return over

    def sampled(self, connection: Connection, read_bytes: int, turn: int) -> str | None:
        """Count what was read from a connection.

        Args:
            read_bytes: since it was accepted.
            turn: number of times that every whole message was handed on, counted by the caller.

        Returns:
            Why the connection is to be cut, or None. Between two messages that are handed on lies one message, and
            before the next turn also those that libzmq reads ahead.
        """
        before = connection.held_bytes
        messages = connection.messages
        if messages != connection.seen:
            connection.seen, connection.base_bytes = messages, read_bytes
        connection.held_bytes = held = read_bytes - connection.base_bytes
        self.held_bytes += held - before
        is_stranger = not self._speaks(connection)
        allowed = STRANGER_BYTES_MAX if is_stranger else self.message_bytes_max + HANDSHAKE_BYTES
        if held <= allowed:
            connection.suspected = None
            self._suspects.discard(connection)
            return None
        queued = 1 if is_stranger else self.limits.messages_ahead
        if held > (1 + queued) * allowed or (
            connection.suspected is not None and connection.suspected < turn
        ):
            return MESSAGE_TOO_LONG
        if connection.suspected is None:
            connection.suspected = turn
            self._suspects.add(connection)
        return None

    def largest(self) -> Connection | None:
        """The connection that holds most; None where none holds anything."""
        holding = (one for one in self if one.reason is None and one.held_bytes)
        return max(holding, key=lambda one: one.held_bytes, default=None)

    def excess(self) -> Connection | None:
        """The connection that holds most, where all together hold more than they may."""
        return None if self.held_bytes <= self.limits.unread_bytes_max else self.largest()

    def sweep(self, at_s: float, read_s: float) -> list[Connection]:
        """Look who speaks for a client now.

        Args:
            at_s: now.
            read_s: whatever came before was handed on; seconds.

        Returns:
            Connections that had their time to say a hello, to be cut.
        """
        late = []
        for connection in self:
            if connection.reason is not None:
                continue
            if self._speaks(connection):
                self._remove_stranger(connection)
                connection.since_s = at_s
            else:
                self._add_stranger(connection)
                if connection.since_s + self.limits.hello_s < read_s:
                    late.append(connection)
        return late

    def _is_over(self) -> bool:
        total = len(self._by_fd) - self._cut
        return self.strangers > 0 and (
            self.strangers > self.limits.strangers_max or total > self.limits.connections_max
        )

    def _ended(self, connection: Connection) -> None:
        if not (connection.was_client or self._speaks(connection)):
            self.arrivals.wasted(connection.site)
        self.held_bytes -= connection.held_bytes
        connection.held_bytes = 0
        self._suspects.discard(connection)
        self._remove_stranger(connection)

    def _speaks(self, connection: Connection) -> bool:
        speaks = connection.route is not None and self.is_client(connection.route)
        connection.was_client |= speaks
        return speaks

    def _add_stranger(self, connection: Connection) -> None:
        if not connection.is_stranger:
            connection.is_stranger = True
            self._strangers.setdefault(connection.site, {})[connection.fd] = connection
            self.strangers += 1

    def _remove_stranger(self, connection: Connection) -> None:
        if connection.is_stranger:
            connection.is_stranger = False
            of_site = self._strangers[connection.site]
            del of_site[connection.fd]
            if not of_site:
                del self._strangers[connection.site]
            self.strangers -= 1


def site_of(address: str) -> str:
    """An address of IPv4, or the first 64 bits of one of IPv6: what one owner has at least."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return f"{int(found) >> (128 - IPV6_SITE_BITS):x}::"
    return str(found.ipv4_mapped or found) if isinstance(found, IPv6Address) else address
