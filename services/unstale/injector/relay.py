"""TCP below the messages: bytes between clients and the message proxy, held up by the toxics of the tcp layer.

What is read from one side is a piece, and passes through the same toxics in the same way as a message does; no byte of
it is changed. The relay does not know what the bytes mean: the proxy tells it which connection is which client.
"""

import errno
import logging
import selectors
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from urllib.parse import urlsplit

from unstale.errors import UserError
from unstale.injector import calls
from unstale.net.clock import now_s
from unstale.net.sockets import BACKLOG
from unstale.net.wakeable_queue import WakeableQueue
from unstale.toxics.in_flight import Direction, InFlightMessage
from unstale.toxics.link import Applied, ToxicLink
from unstale_proto.limits import CLIENTS_MAX

log = logging.getLogger("unstale.injector")

PIECE_BYTES = 64 * 1024  # at most, as read; a bandwidth lets go of one at a time
HELD_BYTES_MAX = 256 * 1024  # in one direction of one connection; beyond it, nothing more is read
CONNECT_S = 5.0  # to the proxy, which is in this very process
NOBODY = CLIENTS_MAX  # a connection whose client is not known: only toxics that touch everybody touch it
WAIT_S_MAX = 3600.0  # in one go; a month is more than a poll can take
RESET = struct.pack("ii", 1, 0)  # SO_LINGER that makes closing a reset


@dataclass(frozen=True, slots=True)
class _Change:
    toxics: Sequence[Applied]


@dataclass(frozen=True, slots=True)
class _Speaks:
    """The connection whose inner end has this port is a client's."""

    port: int
    client_id: int


@dataclass(frozen=True, slots=True)
class _CutNow:
    """client_id: another connection may have been given that port since."""

    port: int
    client_id: int


@dataclass(frozen=True, slots=True)
class _Check:
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class _End:
    pass


@dataclass(slots=True, eq=False)
class _Way:
    """One direction of a connection. held: pieces and when they go on, an empty one at the end. blocked: the sink takes
    no more just now. ended: nothing more comes from the source."""

    connection: "_Connection"
    direction: Direction
    source: socket.socket
    sink: socket.socket
    held: deque[tuple[float, memoryview]] = field(default_factory=deque)
    held_bytes: int = 0
    pieces: int = 0
    blocked: bool = False
    ended: bool = False
    finished: bool = False


@dataclass(slots=True, eq=False)
class _Connection:
    """outer: to the client. inner: to the proxy. link: of its own, as its lines are."""

    outer: socket.socket
    inner: socket.socket
    port: int
    link: ToxicLink
    client_id: int = NOBODY
    ways: tuple[_Way, ...] = ()
    is_open: bool = True


class Relay:
    """Runs in a thread of its own from `start` until `close`.

    address: tcp://HOST:PORT where clients connect; `self.address` has the port that was taken. inner: the same of the
    proxy. seed, started_s: of the scenario. connections_max: beyond so many, further ones are refused. on_crash: told,
    in the relay's thread, what that died of. touched: pieces that each toxic held up, by its name. Raises UserError
    when the address cannot be used.
    """

    def __init__(
        self,
        address: str,
        inner: str,
        *,
        seed: int,
        started_s: float,
        connections_max: int,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._listener = _listening(address)
        self._inner = _host_and_port(inner)
        self._seed = seed
        self._started_s = started_s
        self._connections_max = connections_max
        self._warned_of_many = False
        self._toxics: Sequence[Applied] = ()
        self.touched: Counter[str] = Counter()
        self._queue: WakeableQueue[_Change | _Speaks | _CutNow | _Check | _End] = WakeableQueue()
        self._selector = selectors.DefaultSelector()
        self._by_port: dict[int, _Connection] = {}
        self._due: list[tuple[float, int, _Way]] = []
        self._sequence = count()
        self._on_crash = on_crash
        self._ending = False
        host = address.removeprefix("tcp://").rpartition(":")[0]
        self.address = f"tcp://{host}:{self._listener.getsockname()[1]}"
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._queue, selectors.EVENT_READ, self._open_letters)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raise TimeoutError when its thread does not answer. Any other thread."""
        check = _Check()
        self._queue.post(check)
        if not check.done.wait(calls.ANSWER_S):
            raise TimeoutError("the injector's relay does not answer")

    def change(self, toxics: Sequence[Applied]) -> None:
        """From here on, these; also for what is held up. Any thread."""
        self._queue.post(_Change(toxics))

    def speaks_for(self, port: int, client_id: int) -> None:
        """The connection that comes to the proxy from this port is a client's. Any thread."""
        self._queue.post(_Speaks(port, client_id))

    def cut(self, port: int, client_id: int) -> None:
        """Break that connection of a client, with a reset to both sides. Any thread."""
        self._queue.post(_CutNow(port, client_id))

    def close(self) -> None:
        """Break every connection and end. Also when it was never started."""
        self._queue.post(_End())
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
            self._on_crash(error)

    def _turn(self) -> None:
        patience_s = min(max(0.0, self._due[0][0] - now_s()), WAIT_S_MAX) if self._due else None
        for key, readiness in self._selector.select(patience_s):
            key.data(readiness)
        at_s = now_s()
        while self._due and self._due[0][0] <= at_s:
            self._pass_on(heappop(self._due)[2])

    def _open_letters(self, _: int) -> None:
        for letter in self._queue.drain():
            match letter:
                case _Change(toxics=toxics):
                    self._toxics = toxics
                    for name in self.touched.keys() - {one.toxic.name for one in toxics}:
                        del self.touched[name]
                    for connection in list(self._by_port.values()):
                        self._hold_anew(connection)
                case _Speaks(port=port, client_id=client_id) if port in self._by_port:
                    self._by_port[port].client_id = client_id
                case _CutNow(port=port, client_id=client_id) if port in self._by_port:
                    if self._by_port[port].client_id == client_id:
                        self._reset(self._by_port[port])
                case _Check(done=done):
                    done.set()
                case _End():
                    self._ending = True

    def _accept(self, _: int) -> None:
        try:
            outer, _address = self._listener.accept()
        except OSError as error:
            log.warning("a connection could not be accepted: %s", (error.strerror or str(error)).lower())
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._by_port:
                self._selector.unregister(self._listener)  # until another one has ended
            return
        if len(self._by_port) >= self._connections_max:
            self._refuse(outer)
            return
        try:
            inner = socket.create_connection(self._inner, timeout=CONNECT_S)
        except OSError as error:
            log.warning("a connection could not be passed on: %s", (error.strerror or str(error)).lower())
            outer.close()
            return
        port = inner.getsockname()[1]
        connection = _Connection(outer, inner, port, self._passage())
        connection.ways = (
            _Way(connection, Direction.UP, outer, inner),
            _Way(connection, Direction.DOWN, inner, outer),
        )
        self._by_port[port] = connection
        for one in (outer, inner):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(one, selectors.EVENT_READ, partial(self._serve, connection, one))

    def _refuse(self, outer: socket.socket) -> None:
        outer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        outer.close()
        if not self._warned_of_many:
            self._warned_of_many = True
            log.warning("over %d connections; further ones are refused", self._connections_max)

    def _passage(self) -> ToxicLink:
        link = ToxicLink(self._toxics, self._seed)
        link.touched = self.touched
        return link

    def _serve(self, connection: _Connection, ready: socket.socket, readiness: int) -> None:
        for way in connection.ways:
            if connection.is_open and way.source is ready and readiness & selectors.EVENT_READ:
                self._read(way)
            if connection.is_open and way.sink is ready and readiness & selectors.EVENT_WRITE:
                way.blocked = False
                self._pass_on(way)

    def _read(self, way: _Way) -> None:
        try:
            piece = way.source.recv(PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._reset(way.connection)
            return
        way.ended = not piece
        self._hold(way, memoryview(piece))
        self._pass_on(way)

    def _hold(self, way: _Way, piece: memoryview) -> None:
        """Behind what is held already, until the toxics let it go."""
        sent_s = now_s() - self._started_s
        flight = InFlightMessage(
            client_id=way.connection.client_id,
            direction=way.direction,
            type="update" if way.direction is Direction.UP else "task",
            number=way.pieces,
            sent_s=sent_s,
            due_s=sent_s,
            began_s=sent_s,
            size_bytes=len(piece),
        )
        way.pieces += 1
        # No byte is lost and none comes twice, whatever a toxic says.
        out_s = max((one.due_s for one in way.connection.link.send(flight)), default=sent_s)
        due_s = self._started_s + out_s
        if out_s > sent_s:
            heappush(self._due, (due_s, next(self._sequence), way))
        way.held.append((due_s, piece))
        way.held_bytes += len(piece)

    def _hold_anew(self, connection: _Connection) -> None:
        """Toxics have changed: what is held up waits for the new ones only."""
        connection.link = self._passage()
        for way in connection.ways:
            pieces = [piece for _, piece in way.held]
            way.held.clear()
            way.held_bytes = 0
            for piece in pieces:
                self._hold(way, piece)
            self._pass_on(way)

    def _pass_on(self, way: _Way) -> None:
        """Write what is due, as far as the sink takes it."""
        if not way.connection.is_open:
            return
        at_s = now_s()
        try:
            while way.held and way.held[0][0] <= at_s and not way.blocked:
                self._write_first(way)
        except BlockingIOError:
            way.blocked = True
        except OSError:
            self._reset(way.connection)
            return
        if all(one.finished for one in way.connection.ways):
            self._forget(way.connection)
        else:
            self._watch(way.connection)

    def _write_first(self, way: _Way) -> None:
        due_s, piece = way.held.popleft()
        if not piece:
            way.sink.shutdown(socket.SHUT_WR)
            way.finished = True
            return
        written = 0
        try:
            written = way.sink.send(piece)
        finally:
            way.held_bytes -= written
            if written < len(piece):
                way.held.appendleft((due_s, piece[written:]))

    def _watch(self, connection: _Connection) -> None:
        """Read where there is room, and write where something waits for it."""
        for one in (connection.outer, connection.inner):
            events = 0
            for way in connection.ways:
                if way.source is one and not way.ended and way.held_bytes < HELD_BYTES_MAX:
                    events |= selectors.EVENT_READ
                if way.sink is one and way.blocked:
                    events |= selectors.EVENT_WRITE
            self._select(one, events, partial(self._serve, connection, one))

    def _select(self, one: socket.socket, events: int, serve: partial[None]) -> None:
        key = self._selector.get_map().get(one)
        if key is None and events:
            self._selector.register(one, events, serve)
        elif key is not None and not events:
            self._selector.unregister(one)
        elif key is not None and key.events != events:
            self._selector.modify(one, events, key.data)

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
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme != "tcp" or not host or port is None:
        raise UserError(f"injector.address is {address!r}, expected tcp://HOST:PORT")
    return host, port


def _listening(address: str) -> socket.socket:
    host, port = _host_and_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server(("" if host == "*" else host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UserError(
            f"injector.address {address} cannot be used ({(error.strerror or str(error)).lower()}); "
            "stop what listens there, or name another tcp://HOST:PORT of this machine"
        ) from None
    listener.setblocking(False)
    return listener
