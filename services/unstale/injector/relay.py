"""The relay of TCP connections, which applies toxics of the layer tcp.

The bytes of one read are a piece, which passes the toxics like a message; no byte is changed. The relay does not know
the meaning of bytes: the proxy informs it which connection belongs to which client.
"""

import errno
import logging
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from urllib.parse import urlsplit

from unstale.errors import UserError
from unstale.injector import calls
from unstale.injector.calls import CallQueue
from unstale.toxics.in_flight import Direction, InFlightMessage
from unstale.toxics.link import Applied, Counts, ToxicLink
from unstale_client.net.clock import now_s
from unstale_client.net.sockets import BACKLOG
from unstale_proto.limits import CLIENTS_MAX

log = logging.getLogger("unstale.injector")

PIECE_BYTES = 64 * 1024  # of one read, at most; a bandwidth delays each piece
HELD_BYTES_MAX = 256 * 1024  # buffered bytes of one direction of a connection, beyond which nothing is read
CONNECT_S = 5.0  # to the proxy in the same process
NOBODY = CLIENTS_MAX  # the client of a connection is unknown: only toxics of all clients touch it
WAIT_S_MAX = 3600.0  # of one select, whose longest timeout is under a month
RESET = struct.pack("ii", 1, 0)  # SO_LINGER that closes a connection with a reset


@dataclass(slots=True, eq=False)
class _Stream:
    """One direction of a connection."""

    connection: "_Connection"
    direction: Direction
    source: socket.socket
    sink: socket.socket
    buffer: deque[tuple[float, memoryview]] = field(default_factory=deque)  # due_s and piece, empty at the end
    buffered_bytes: int = 0
    pieces: int = 0
    blocked: bool = False  # the sink does not accept bytes
    ended: bool = False  # the source has no more bytes
    finished: bool = False  # the end has been forwarded


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection of a client (outer) and the one to the proxy (inner)."""

    outer: socket.socket
    inner: socket.socket
    port: int  # of the inner socket
    link: ToxicLink
    client_id: int = NOBODY
    streams: tuple[_Stream, ...] = ()
    is_open: bool = True


@dataclass(eq=False)
class Relay:
    """Runs in its own thread from `start` until `close`. Raises UserError if the address cannot be used."""

    address: str  # tcp://HOST:PORT for clients, then with the actual port
    inner: str  # address of the proxy
    _: KW_ONLY
    seed: int
    started_s: float
    connections_max: int  # further connections are refused
    on_crash: Callable[[BaseException], None]  # receives, in the relay's thread, the exception that ends it

    counts: Counts = field(default_factory=Counts, init=False)  # delayed pieces

    def __post_init__(self) -> None:
        self._listener = _listening(self.address)
        host = self.address.removeprefix("tcp://").rpartition(":")[0]
        self.address = f"tcp://{host}:{self._listener.getsockname()[1]}"
        self._has_warned = False
        self._toxics: Sequence[Applied] = ()
        self._queue = CallQueue()
        self._selector = selectors.DefaultSelector()
        self._by_port: dict[int, _Connection] = {}
        self._due: list[tuple[float, int, _Stream]] = []
        self._sequence = count()
        self._ending = False
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._queue, selectors.EVENT_READ, lambda _: calls.serve(self._queue))
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raise TimeoutError if its thread does not answer. Any other thread."""
        calls.run_in_thread(self._queue, lambda: None, "the injector's relay")

    def change(self, toxics: Sequence[Applied]) -> None:
        """Replace the toxics, also for buffered pieces. Any thread."""
        self._queue.post(partial(self._change, toxics))

    def assign(self, port: int, client_id: int) -> None:
        """Assign a connection, by its port at the proxy, to a client. Any thread."""
        self._queue.post(partial(self._assign, port, client_id))

    def cut(self, port: int, client_id: int) -> None:
        """Reset that connection of a client on both sides. Any thread."""
        self._queue.post(partial(self._cut, port, client_id))

    def close(self) -> None:
        """Reset all connections and end the thread, also if it was never started."""
        self._queue.post(self._end)
        if self._thread.is_alive():
            self._thread.join()
        for connection in list(self._by_port.values()):
            self._reset(connection)
        self._selector.close()
        self._listener.close()
        self._queue.close()

    # --- the thread ---

    def _run(self) -> None:
        try:
            while not self._ending:
                self._turn()
        except BaseException as error:  # noqa: BLE001  (raised in the main thread)
            self.on_crash(error)

    def _turn(self) -> None:
        timeout_s = min(max(0.0, self._due[0][0] - now_s()), WAIT_S_MAX) if self._due else None
        for key, readiness in self._selector.select(timeout_s):
            key.data(readiness)
        at_s = now_s()
        while self._due and self._due[0][0] <= at_s:
            self._flush(heappop(self._due)[2])

    def _change(self, toxics: Sequence[Applied]) -> None:
        self._toxics = toxics
        self.counts.change(toxics)
        for connection in list(self._by_port.values()):
            connection.link = self._link()
            for stream in connection.streams:
                pieces = [piece for _, piece in stream.buffer]
                stream.buffer.clear()
                stream.buffered_bytes = 0
                for piece in pieces:
                    self._append(stream, piece)
                self._flush(stream)

    def _assign(self, port: int, client_id: int) -> None:
        if port in self._by_port:
            self._by_port[port].client_id = client_id

    def _cut(self, port: int, client_id: int) -> None:
        connection = self._by_port.get(port)
        if connection is not None and connection.client_id == client_id:  # else the port is in use again
            self._reset(connection)

    def _end(self) -> None:
        self._ending = True

    def _accept(self, _: int) -> None:
        try:
            outer, _address = self._listener.accept()
        except OSError as error:
            log.warning("a connection could not be accepted: %s", (error.strerror or str(error)).lower())
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._by_port:
                self._selector.unregister(self._listener)  # until another one has ended
            return
        if len(self._by_port) >= self.connections_max:
            self._refuse(outer)
            return
        try:
            inner = socket.create_connection(_host_and_port(self.inner), timeout=CONNECT_S)
        except OSError as error:
            log.warning("no connection from the relay to the proxy: %s", (error.strerror or str(error)).lower())
            outer.close()
            return
        port = inner.getsockname()[1]
        connection = self._by_port[port] = _Connection(outer, inner, port, self._link())
        connection.streams = (
            _Stream(connection, Direction.UP, outer, inner),
            _Stream(connection, Direction.DOWN, inner, outer),
        )
        for one in (outer, inner):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(one, selectors.EVENT_READ, partial(self._serve, connection, one))

    def _refuse(self, outer: socket.socket) -> None:
        outer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        outer.close()
        if not self._has_warned:
            self._has_warned = True
            log.warning("over %d connections; further ones are refused", self.connections_max)

    def _link(self) -> ToxicLink:
        """A link for one connection, because each has its own channels."""
        return ToxicLink(self._toxics, self.seed, self.counts)

    def _serve(self, connection: _Connection, ready: socket.socket, readiness: int) -> None:
        for stream in connection.streams:
            if connection.is_open and stream.source is ready and readiness & selectors.EVENT_READ:
                self._read(stream)
            if connection.is_open and stream.sink is ready and readiness & selectors.EVENT_WRITE:
                stream.blocked = False
                self._flush(stream)

    def _read(self, stream: _Stream) -> None:
        try:
            piece = stream.source.recv(PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._reset(stream.connection)
            return
        stream.ended = not piece
        self._append(stream, memoryview(piece))
        self._flush(stream)

    def _append(self, stream: _Stream, piece: memoryview) -> None:
        """Buffer a piece until the toxics release it."""
        sent_s = now_s() - self.started_s
        flight = InFlightMessage(
            client_id=stream.connection.client_id,
            direction=stream.direction,
            type="update" if stream.direction is Direction.UP else "task",
            number=stream.pieces,
            sent_s=sent_s,
            due_s=sent_s,
            began_s=sent_s,
            size_bytes=len(piece),
        )
        stream.pieces += 1
        # No byte is lost or duplicated, whatever a toxic returns.
        out_s = max((one.due_s for one in stream.connection.link.send(flight)), default=sent_s)
        due_s = self.started_s + out_s
        if out_s > sent_s:
            heappush(self._due, (due_s, next(self._sequence), stream))
        stream.buffer.append((due_s, piece))
        stream.buffered_bytes += len(piece)

    def _flush(self, stream: _Stream) -> None:
        """Write pieces that are due, as far as the sink accepts them."""
        connection = stream.connection
        if not connection.is_open:
            return
        at_s = now_s()
        try:
            while stream.buffer and stream.buffer[0][0] <= at_s and not stream.blocked:
                self._write_first(stream)
        except BlockingIOError:
            stream.blocked = True
        except OSError:
            self._reset(connection)
            return
        if all(one.finished for one in connection.streams):
            self._forget(connection)
        else:
            self._watch(connection)

    def _write_first(self, stream: _Stream) -> None:
        due_s, piece = stream.buffer[0]
        if piece:
            written = stream.sink.send(piece)
            stream.buffered_bytes -= written
            if written < len(piece):
                stream.buffer[0] = due_s, piece[written:]
                return
        else:
            stream.sink.shutdown(socket.SHUT_WR)
            stream.finished = True
        stream.buffer.popleft()

    def _watch(self, connection: _Connection) -> None:
        """Read while the buffer has space, and write while bytes wait for the sink."""
        events = dict.fromkeys((connection.outer, connection.inner), 0)
        for stream in connection.streams:
            if not stream.ended and stream.buffered_bytes < HELD_BYTES_MAX:
                events[stream.source] |= selectors.EVENT_READ
            if stream.blocked:
                events[stream.sink] |= selectors.EVENT_WRITE
        for one, mask in events.items():
            key = self._selector.get_map().get(one)
            if mask == (key.events if key else 0):
                continue
            if key:
                self._selector.unregister(one)
            if mask:
                self._selector.register(one, mask, partial(self._serve, connection, one))

    def _reset(self, connection: _Connection) -> None:
        for one in (connection.outer, connection.inner):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._forget(connection)

    def _forget(self, connection: _Connection) -> None:
        connection.is_open = False
        self._by_port.pop(connection.port, None)
        for one in (connection.outer, connection.inner):
            if one in self._selector.get_map():
                self._selector.unregister(one)
            one.close()
        if self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)


def _host_and_port(address: str) -> tuple[str, int]:
    with suppress(ValueError):
        parts = urlsplit(address)
        if parts.scheme == "tcp" and parts.hostname and parts.port is not None:
            return parts.hostname, parts.port
    raise UserError(f"injector.address is {address!r}, expected tcp://HOST:PORT")


def _listening(address: str) -> socket.socket:
    host, port = _host_and_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server(("" if host == "*" else host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UserError(
            f"injector.address {address} cannot be used ({(error.strerror or str(error)).lower()}); "
            "stop the program that uses it, or choose another tcp://HOST:PORT of this machine"
        ) from None
    listener.setblocking(False)
    return listener
