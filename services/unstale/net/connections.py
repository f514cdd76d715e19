"""Limits on the connections to one bound socket: their number, and the memory that each may use. Pure.

The caller is `ConnectionLimiter`. A connection is a stranger while it speaks for no client. Caps count strangers only.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

from unstale.net.tcp import Peer
from unstale_proto.limits import CLIENTS_MAX, HEADER_BYTES_MAX

TOO_MANY, NO_HELLO, MESSAGE_TOO_LONG = "too-many", "no-hello", "message-too-long"
TOO_MANY_FRAMES, MEMORY = "too-many-frames", "memory"
REASONS = (TOO_MANY, NO_HELLO, MESSAGE_TOO_LONG, TOO_MANY_FRAMES, MEMORY)

HANDSHAKE_BYTES = 4096  # a CURVE handshake has about 700 bytes
STRANGER_BYTES_MAX = HEADER_BYTES_MAX + HANDSHAKE_BYTES  # a stranger sends only a hello
SPARE_STRANGERS = 256  # beside one per client: processes that take over, port checks, and mistakes
IPV6_SITE_BITS = 64  # the prefix that one owner has at least

WASTED_AT_ONCE = 256.0  # port checks, keys that are not authorized, many clients that start behind one address
WASTED_PER_S = 16.0  # a connection that is cut costs up to 1 ms of a core
SITES_LIMITED_MAX = 128  # the system limits a filter to about 2,500 instructions
SITES_MAX = 4096
SHARE_MIN = 2.0**-12
GROWTH, SHRINK_MAX = 1.25, 16.0  # of a share from one look to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    strangers_max: int = CLIENTS_MAX
    connections_max: int = CLIENTS_MAX  # strangers and clients, as the limit of open files allows
    hello_s: float = 15.0  # time until a connection must speak for a client
    unread_bytes_max: int = 2**30  # bytes of incomplete messages, of all connections
    messages_ahead: int = 8  # complete messages of a client that libzmq reads ahead


@dataclass(slots=True, eq=False)
class Connection:
    """One connection. The socket's thread writes `route` and `messages`."""

    fd: int  # descriptor, of libzmq
    peer: Peer
    site: str  # address, or the first 64 bits of an IPv6 address
    since_s: float  # time at which it was accepted, or last spoke for a client
    route: bytes | None = None  # routing id; None before the first message
    messages: int = 0  # complete messages received
    seen: int = 0  # value of `messages` at the latest sample
    base_bytes: int = 0  # bytes read up to the latest complete message
    held_bytes: int = 0  # bytes read since
    suspected: int | None = None  # turn at which it first held more bytes than one message may have
    is_stranger: bool = True
    was_client: bool = False  # whether it ever spoke for a client
    reason: str | None = None  # of its cut


@dataclass(slots=True)
class _Site:
    """Connections of one address."""

    left: float = WASTED_AT_ONCE  # connections that it may still waste at once
    wasted: int = 0  # since the last look
    share: float = 1.0  # of its attempts to connect that pass


@dataclass(slots=True)
class Arrivals:
    """The share of attempts to connect that pass, by address; `syn_filter` drops the others.

    A connection is wasted when it ends without ever having spoken for a client. An address may waste a few. Beyond
    that, a share of its further attempts is dropped, which follows the rate of wasted connections.

    at_s: time of the last look.
    """

    at_s: float
    _sites: dict[str, _Site] = field(default_factory=dict)  # the latest to waste is last

    def wasted(self, address: str) -> None:
        site = self._sites.pop(address, None) or _Site()
        site.wasted += 1
        self._sites[address] = site
        if len(self._sites) > SITES_MAX:
            del self._sites[next(iter(self._sites))]

    def look(self, at_s: float) -> dict[str, float]:
        """Adapt the shares. Returns the smallest shares below 1, by address."""
        elapsed_s, self.at_s = max(at_s - self.at_s, 1e-3), at_s
        for address, site in list(self._sites.items()):
            _adapt(site, elapsed_s)
            if site.share == 1.0 and site.left == WASTED_AT_ONCE:
                del self._sites[address]
        limited = {address: site.share for address, site in self._sites.items() if site.share < 1.0}
        return dict(sorted(limited.items(), key=lambda item: item[1])[:SITES_LIMITED_MAX])


def _adapt(site: _Site, elapsed_s: float) -> None:
    rate = site.wasted / elapsed_s
    site.left = min(WASTED_AT_ONCE, site.left - site.wasted + WASTED_PER_S * elapsed_s)
    site.wasted = 0
    if site.left < 0 and rate > WASTED_PER_S:
        site.share = max(SHARE_MIN, site.share * max(WASTED_PER_S / rate, 1 / SHRINK_MAX))
    else:
        site.share = min(1.0, site.share * GROWTH)
    site.left = max(site.left, -WASTED_AT_ONCE)


@dataclass(slots=True)
class ConnectionTable:
    """All connections. One thread calls all methods but `get` and `heard`."""

    limits: ConnectionLimits
    is_client: Callable[[bytes], bool]  # returns whether a routing id speaks for a client now
    message_bytes_max: int  # payload and header of a client's longest message
    arrivals: Arrivals
    held_bytes: int = 0  # of all connections
    _by_fd: dict[int, Connection] = field(default_factory=dict)
    _strangers: dict[str, dict[int, Connection]] = field(default_factory=dict)  # by site, oldest first
    _routes: dict[int, bytes] = field(default_factory=dict)  # of messages that came before `accepted`
    _suspects: set[Connection] = field(default_factory=set)
    _cut: int = 0  # connections that were cut and have not ended
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
        """Connections that hold more bytes than one message may have."""
        return list(self._suspects)

    def get(self, fd: int) -> Connection | None:
        """The connection with a descriptor. Any thread."""
        return self._by_fd.get(fd)

    def heard(self, fd: int, route: bytes) -> None:
        """A complete message arrived. The socket's thread, which may be ahead of `accepted`."""
        connection = self._by_fd.get(fd)
        if connection is None or connection.route not in (None, route):
            self._routes[fd] = route  # of a connection that is not yet accepted
        if connection is not None:
            connection.route = route
            connection.messages += 1

    def accepted(self, fd: int, peer: Peer, at_s: float) -> Connection:
        """A connection was accepted; an earlier one with its descriptor has ended."""
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
        """A connection is being ended, and counts no more: libzmq frees its memory."""
        if connection.reason is None and self._by_fd.get(connection.fd) is connection:
            connection.reason = reason
            self._cut += 1
            self._ended(connection)

    def surplus(self) -> list[Connection]:
        """Cut strangers over the caps, each time the oldest of the site with the most. Returns them."""
        cut = []
        while self._is_over():
            of_site = max(self._strangers.values(), key=len)
            connection = next(iter(of_site.values()))
            if self._speaks(connection):
                self._remove_stranger(connection)
            else:
                self.cut(connection, TOO_MANY)
                cut.append(connection)
        return cut

    def sampled(self, connection: Connection, read_bytes: int, turn: int) -> str | None:
        """Count the bytes read from a connection. Between two received messages lies one message, and before the next
        turn also those that libzmq reads ahead. Returns the reason to cut the connection, or None.

        read_bytes: since it was accepted. turn: number of times that the socket was empty.
        """
        before = connection.held_bytes
        messages = connection.messages
        if messages != connection.seen:
            connection.seen, connection.base_bytes = messages, read_bytes
        connection.held_bytes = held_bytes = read_bytes - connection.base_bytes
        self.held_bytes += held_bytes - before
        is_stranger = not self._speaks(connection)
        allowed = STRANGER_BYTES_MAX if is_stranger else self.message_bytes_max + HANDSHAKE_BYTES
        if held_bytes <= allowed:
            connection.suspected = None
            self._suspects.discard(connection)
            return None
        queued = 1 if is_stranger else self.limits.messages_ahead
        if held_bytes > (1 + queued) * allowed or (connection.suspected is not None and connection.suspected < turn):
            return MESSAGE_TOO_LONG
        if connection.suspected is None:
            connection.suspected = turn
            self._suspects.add(connection)
        return None

    def largest(self) -> Connection | None:
        """The connection that holds most bytes; None if none holds any."""
        holding = (connection for connection in self if connection.reason is None and connection.held_bytes)
        return max(holding, key=lambda connection: connection.held_bytes, default=None)

    def excess(self) -> Connection | None:
        """The connection that holds most bytes, if all together exceed the limit."""
        return None if self.held_bytes <= self.limits.unread_bytes_max else self.largest()

    def sweep(self, at_s: float, read_s: float) -> list[Connection]:
        """Find the connections that speak for a client now. Returns strangers whose time for a hello is over.

        read_s: messages that arrived before this time were received.
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
    """An IPv4 address, or the first 64 bits of an IPv6 address."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{int(parsed) >> (128 - IPV6_SITE_BITS):x}::"
