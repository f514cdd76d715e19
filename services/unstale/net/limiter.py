"""Watches the connections to a bound ROUTER socket, and cuts those that exceed the limits.

libzmq limits neither connections nor incomplete messages. Its monitor reports the file descriptor of each accepted and
ended connection, the system reports the bytes that came over it, and after `shutdown` libzmq frees its memory. A thread
does this; `ConnectionTable` decides.
"""

import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field

import zmq

from unstale.log_rate_limit import about_peer, logger
from unstale.net import syn_filter, tcp
from unstale.net.connections import MEMORY, NO_HELLO, Arrivals, Connection, ConnectionLimits, ConnectionTable
from unstale.net.memory import MemoryBound
from unstale_client.net.clock import now_s
from unstale_client.net.handshakes import FAILED, parsed
from unstale_client.net.wakeable_queue import WakeableQueue

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

log = logger("unstale.net")

MONITOR_ADDRESS = "inproc://unstale.connections"
EVENTS = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | FAILED
TICK_S = 0.02  # between two samples of bytes read: a link of 1 Gbit/s brings 6 MB meanwhile
SWEEP_S = 1.0  # between two sweeps: 10,000 clients take 10 ms
SURPLUS_S = 0.25  # between two cuts of strangers over the cap, unless descriptors are scarce
SHARES_S = 0.25  # between two changes of the shares of attempts to connect
EVENTS_AT_ONCE = 256  # read before the caps are checked
NO_DESCRIPTOR = -1  # of a message by a protocol older than ZMTP 3, or from this process


@dataclass(slots=True, eq=False)
class ConnectionLimiter:
    """Limits the connections to one socket. `watch` starts it, before the socket is bound.

    All callbacks run in the limiter's thread.
    """

    limits: InitVar[ConnectionLimits]
    _: KW_ONLY
    is_client: InitVar[Callable[[bytes], bool]]  # returns whether a routing id speaks for a client now
    message_bytes_max: InitVar[int]  # payload and header of a client's longest message
    memory: MemoryBound
    on_cut: Callable[[bytes | None, str], None]  # takes routing id and reason; no id before the first message
    on_crash: Callable[[BaseException], None]  # takes the error that ended the thread
    on_failed: Callable[[int, int], None] = lambda _kind, _value: None  # takes kind and value of a failed handshake
    at_rest: bool = True  # whether the socket is empty. Set by the socket's thread
    table: ConnectionTable = field(init=False)
    _freeing: Connection | None = None  # cut because of memory, and not yet closed
    _drained: int = 0  # times that the socket's thread found the socket empty
    _drained_seen: int = 0
    _turn: int = 0
    _read_s: float = field(default_factory=now_s)  # messages that arrived before were received
    _ticked_s: float = field(default_factory=now_s)
    _swept_s: float = field(default_factory=now_s)
    _surplus_s: float = field(default_factory=now_s)
    _shared_s: float = field(default_factory=now_s)
    _listening: int = NO_DESCRIPTOR
    _shares: dict[str, float] = field(default_factory=dict)  # of attempts to connect that pass, by address
    _socket: Socket | None = None
    _monitor: Socket = field(init=False)
    _queue: WakeableQueue[tuple[Connection, str] | None] = field(init=False)
    _thread: threading.Thread = field(init=False)
    _readable: "_Readable" = field(init=False)
    # connections with bytes of no received message at the last sample, and whether libzmq had not read some of them: no
    # edge says when it reads them, nor when the message is received
    _unsettled: dict[Connection, bool] = field(init=False, default_factory=dict)

    def __post_init__(
        self, limits: ConnectionLimits, is_client: Callable[[bytes], bool], message_bytes_max: int
    ) -> None:
        self.table = ConnectionTable(limits, is_client, message_bytes_max, Arrivals(now_s()))

    @property
    def addresses_limited(self) -> int:
        """Addresses with limited attempts to connect. Any thread."""
        return len(self._shares)

    # --- the socket's thread ---

    def watch(self, context: Context, socket: Socket) -> None:
        """Watch a socket that is not yet bound. The monitor's queue is unbounded: a full one would block the socket."""
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(self.table.limits.hello_s * 1000))
        address = f"{MONITOR_ADDRESS}.{id(socket)}"
        socket.monitor(address, EVENTS)
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.linger = 0
        self._monitor.rcvhwm = 0
        self._monitor.connect(address)
        self._socket = socket
        self._readable = _Readable()
        self._queue = WakeableQueue()
        self._thread = threading.Thread(target=self._run, name="connections", daemon=True)
        self._thread.start()

    def heard(self, route: zmq.Frame) -> int:
        """A message was received. route: its routing id, received uncopied. Returns the descriptor, for `cut`."""
        try:
            fd = int(route.get(zmq.SRCFD))
        except zmq.ZMQError:
            return NO_DESCRIPTOR
        self.table.heard(fd, route.bytes)
        return fd

    def drained(self) -> None:
        """The socket is empty."""
        self._drained += 1

    def cut(self, fd: int, reason: str) -> None:
        """Cut a connection, soon."""
        connection = self.table.get(fd)
        if connection is not None:
            self._queue.post((connection, reason))

    def close(self) -> None:
        """Stop. Call it in the socket's thread before the socket is closed; twice is allowed."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        socket.disable_monitor()  # first: an unread monitor would block the socket
        self._queue.post(None)
        self._thread.join()
        self._queue.close()
        self._monitor.close()
        self._readable.close()

    # --- the limiter's thread ---

    def _run(self) -> None:
        poller = zmq.Poller()
        for source in (self._monitor, self._queue.fileno()):
            poller.register(source, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll(int(TICK_S * 1000) if len(self.table) or self._shares else None))
                for request in self._queue.drain():
                    if request is None:
                        return
                    self._cut(*request)
                if self._monitor in ready:
                    self._read_monitor()
                at_s = now_s()
                self._cut_surplus(at_s)
                self._tick(at_s)
                self._limit_arrivals(at_s)
        except BaseException as error:  # noqa: BLE001  (raised in the main thread)
            self.on_crash(error)

    def _read_monitor(self) -> None:
        at_s = now_s()
        for _ in range(EVENTS_AT_ONCE):
            try:
                kind, value = parsed(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
            if kind == zmq.EVENT_ACCEPTED:
                self._accepted(value, at_s)
            elif kind == zmq.EVENT_LISTENING:
                self._listening = value
            elif kind == zmq.EVENT_DISCONNECTED:
                self.table.closed(value)
            elif kind & FAILED:
                self.on_failed(kind, value)

    def _cut_surplus(self, at_s: float) -> None:
        """Cut strangers over the caps: at intervals, because many reconnect as soon as they are cut."""
        if at_s >= self._surplus_s + SURPLUS_S or self.table.is_crowded:
            self._surplus_s = at_s
            for connection in self.table.surplus():
                self._end(connection)

    def _accepted(self, fd: int, at_s: float) -> None:
        peer = tcp.peer_of(fd)
        if peer is not None:
            self.table.accepted(fd, peer, at_s)
            self._readable.add(fd)

    def _tick(self, at_s: float) -> None:
        if at_s < self._ticked_s + TICK_S:
            return
        drained, at_rest = self._drained, self.at_rest
        if at_rest or drained != self._drained_seen:
            self._turn += 1
            self._read_s = self._ticked_s
        self._drained_seen, self._ticked_s = drained, at_s
        for connection in self._due():
            self._sample(connection)
        while (largest := self.table.excess()) is not None:
            self._cut(largest, MEMORY)
        self._limit_memory(at_s)
        if at_s >= self._swept_s + SWEEP_S:
            self._swept_s = at_s
            for connection in self.table.sweep(at_s, self._read_s):
                self._cut(connection, NO_HELLO)

    def _due(self) -> set[Connection]:
        """The connections to sample in this tick."""
        due = {*filter(None, map(self.table.get, self._readable.poll())), *self.table.suspects}
        due.update(one for one, is_unread in self._unsettled.items() if is_unread or one.messages != one.seen)
        self._unsettled = {one: False for one in self._unsettled if one not in due and self._is_open(one)}
        return due

    def _is_open(self, connection: Connection) -> bool:
        return connection.reason is None and self.table.get(connection.fd) is connection

    def _limit_memory(self, at_s: float) -> None:
        """Cut the connection that holds most if the process exceeds its memory bound; one at a time, because libzmq
        frees the memory only when it has closed the connection.
        """
        freeing = self._freeing
        if freeing is not None and self.table.get(freeing.fd) is freeing:
            return
        self._freeing = None
        if not self.memory.is_exceeded(at_s, has_freed=freeing is not None):
            return
        largest = self.table.largest()
        if largest is None:
            log.error(
                "the process uses more than %d bytes (server.memory_bytes_max), and no connection holds unread "
                "messages; raise the bound, or use a smaller model or fewer clients",
                self.memory.bytes_max,
                extra=about_peer(MEMORY),
            )
            return
        self._freeing = largest
        self._cut(largest, MEMORY)

    def _limit_arrivals(self, at_s: float) -> None:
        if at_s < self._shared_s + SHARES_S:
            return
        self._shared_s = at_s
        shares = self.table.arrivals.look(at_s)
        if shares == self._shares:
            return
        for site in shares.keys() - self._shares.keys():
            log.warning(
                "new connections from %s are limited, because too many ended without a hello; "
                "connected clients are not affected",
                site,
                extra=about_peer(site),
            )
        self._shares = shares
        try:
            syn_filter.apply(self._listening, shares)
        except OSError as error:
            log.warning("new connections cannot be limited here: %s", error, extra=about_peer("syn_filter"))

    def _sample(self, connection: Connection) -> None:
        if not self._is_open(connection):
            return
        received_bytes = tcp.received_bytes(connection.fd)
        if received_bytes is not None:
            read_bytes, unread_bytes = received_bytes
            reason = self.table.sampled(connection, read_bytes, self._turn)
            if unread_bytes or connection.held_bytes:
                self._unsettled[connection] = unread_bytes > 0
            if reason is not None:
                self._cut(connection, reason)

    def _cut(self, connection: Connection, reason: str) -> None:
        if connection.reason is None:
            self.table.cut(connection, reason)
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        assert connection.reason is not None
        self.on_cut(connection.route, connection.reason)
        if not tcp.end(connection.fd, connection.peer) and self.table.get(connection.fd) is connection:
            self.table.closed(connection.fd)
        log.warning(
            "a connection from %s was cut: %s", connection.peer[0], connection.reason, extra=about_peer(connection.site)
        )


class _Readable:
    """Descriptors that received data since the last poll; none outside Linux.

    The edge of data that was read before the poll is lost, unless the descriptor is ready for something else: hence
    EPOLLOUT, by which the first poll also finds every new descriptor.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll() if sys.platform == "linux" else None

    def add(self, fd: int) -> None:
        """Watch a descriptor until it is closed."""
        if self._epoll is not None:
            with suppress(OSError):  # it has ended
                self._epoll.register(fd, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)

    def poll(self) -> list[int]:
        return [] if self._epoll is None else [fd for fd, _ in self._epoll.poll(0, EVENTS_AT_ONCE * 64)]

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
