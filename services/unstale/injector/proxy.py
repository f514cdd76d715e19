"""The proxy thread: the ROUTER that clients connect to, a DEALER to the server for each of them, and the core between.

So the server sees every client's own connection, and a client the server's own answers. Payload frames go from socket
to socket uncopied. The thread waits on its sockets, its queue and the next thing that is due, and on nothing else.
"""

import logging
import os
import selectors
import socket as plain
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from unstale.errors import UserError
from unstale.injector.calls import Call, QueueItem, StopNow
from unstale.injector.core import Close, Core, Cut, Forward
from unstale.injector.endpoints import Front, ProxyBounds, Upstream
from unstale.injector.numbers import Numbers, Tally
from unstale.injector.relay import WAIT_S_MAX, Relay
from unstale.injector.toxic_collection import ToxicCollection
from unstale.net import sockets
from unstale.net.clock import now_s
from unstale.net.connections import TOO_MANY_FRAMES
from unstale.net.handshakes import Handshakes
from unstale.net.wakeable_queue import WakeableQueue
from unstale.toxics.in_flight import Direction
from unstale_proto.errors import Reason
from unstale_proto.limits import FRAMES_MAX

log = logging.getLogger("unstale.injector")

# As plain numbers: the enumerations of pyzmq cost more than the rest of a turn.
NOBLOCK, MORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
POLLIN, POLLOUT = int(zmq.POLLIN), int(zmq.POLLOUT)

TURN_MESSAGES = 64  # from one socket, before the others have their turn
WAITING_MAX = (
    16  # messages of a connection that wait for the server to take any; a client says a hello every 5 s
)
FIRST_WORD_S = 3.0  # a server that has not answered by then is worth a word to the person who waits


@dataclass(slots=True, eq=False)
class _Back:
    """The connection to the server that stands for a client's. route: of that. waiting: for the server to take it."""

    route: bytes
    socket: zmq.Socket[bytes]
    serve_back: "Callable[[_Back], None]"
    waiting: deque[Forward] = field(default_factory=deque)
    is_open: bool = True

    def serve(self) -> None:
        self.serve_back(self)


class Proxy:
    """Passes messages on until it is told to stop.

    Args:
        front: side of the clients.
        upstream: side of the server.
        bounds: on connections, bytes and time.
        core: says when each message leaves, and as what.
        collection: the toxics.
        queue: calls of other threads.
        relay: of bytes, where a toxic works on connections.
        started_s: when the injector started, in seconds.
    """

    def __init__(
        self,
        front: Front,
        upstream: Upstream,
        bounds: ProxyBounds,
        *,
        core: Core,
        collection: ToxicCollection,
        queue: WakeableQueue[QueueItem],
        relay: Relay | None,
        started_s: float,
    ) -> None:
        self._front, self._authenticator, self._limiter = front.socket, front.authenticator, front.limiter
        self._refused = front.refused
        self._core = core
        self.collection = collection
        self._queue = queue
        self._relay = relay
        self._connect, self._upstream = upstream.connect, upstream.address
        self._started_s = started_s
        self._connections_max, self._bytes_max = bounds.connections_max, bounds.bytes_max
        self._patience_s = bounds.patience_s
        self._tally = Tally()
        self._backs: dict[bytes, _Back] = {}
        # Where there is a relay, its ends of connections: port and client.
        self._ports: dict[bytes, tuple[int, int]] = {}
        self._waiting_bytes = 0
        self._stopped = False
        self._warned = False
        self._warned_of_many = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(queue, selectors.EVENT_READ, self._open_letters)
        self._selector.register(front.socket.FD, selectors.EVENT_READ, self._serve_front)
        # A ZeroMQ socket tells only of changes. Whatever was used since it was last looked at is looked at again.
        self._eager: dict[Callable[[], None], None] = {}
        self._stalled: dict[Callable[[], None], None] = {}
        self._probe: Handshakes | None = upstream.probe
        for one in (upstream.probe.socket, upstream.probe.monitor):
            self._selector.register(one.FD, selectors.EVENT_READ, self._look_for_the_server)
        self._eager[self._look_for_the_server] = None

    def run(self) -> Numbers:
        """Turn until it is over; how it ended. Raises UserError when the server cannot be reached."""
        while not self._stopped:
            self._turn()
        return self.numbers()

    def close(self) -> None:
        """Let go of every connection to the server."""
        for route in list(self._backs):
            self._close(route)
        self._close_probe()
        self._selector.close()
        for item in self._queue.drain():
            if isinstance(item, Call):
                item.error = TimeoutError("the injector is ending")
                item.done.set()

    # --- for errands ---

    def numbers(self) -> Numbers:
        """How things stand. The proxy's thread only."""
        self._count_touched()
        applied = self.collection.applied
        return Numbers(
            scenario_s=self.scenario_s,
            connections=len(self._backs),
            in_flight_messages=self._core.in_flight_messages
            + sum(len(one.waiting) for one in self._backs.values()),
            in_flight_bytes=self._core.in_flight_bytes + self._waiting_bytes,
            up=self._tally.up,
            down=self._tally.down,
            overflowed=self._tally.overflowed,
            touched={one.toxic.name: self._touched(one.toxic.name) for one in applied},
            faults=dict(self._tally.faults),
            refused={**self._refused, Reason.NOT_THE_OWNER.value: self._core.refused},
            delays=tuple(self._tally.delays),
            delay_s=self._tally.delay_s,
        )

    @property
    def scenario_s(self) -> float:
        """Time since the scenario began."""
        return now_s() - self._started_s

    def adopt(self, collection: ToxicCollection, *, lets_go: bool) -> None:
        """Apply these toxics from here on. lets_go: messages that wait go on at once. The proxy's thread only."""
        self._count_touched()
        before, self.collection = self.collection, collection
        self._core.change(collection.of_messages)
        if lets_go:
            self._core.let_go(now_s())
        if self._relay is not None and collection.of_bytes != before.of_bytes:
            self._relay.change(collection.of_bytes)
        self._count_touched()

    def _touched(self, name: str) -> int:
        of_bytes = self._relay.touched[name] if self._relay is not None else 0
        return self._core.link.touched[name] + of_bytes

    def _count_touched(self) -> None:
        types = {one.toxic.name: one.toxic.type for one in self.collection.applied}
        self._tally.touched(types, {name: self._touched(name) for name in types})

    # --- one turn ---

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience()):
            self._eager[key.data] = None
        ready, self._eager = self._eager, {}
        for serve in ready:
            serve()
        at_s = now_s()
        for output in self._core.release(at_s):
            match output:
                case Forward(direction=Direction.UP):
                    self._send_up(output)
                case Forward():
                    self._send_down(output)
                case Cut(connection=bytes(route)):
                    self._cut(route)
                case Close(connection=bytes(route)):
                    self._let_go(route)
        if self._stalled and not self._is_full:
            self._eager.update(self._stalled)
            self._stalled.clear()
        if self._probe is not None:
            self._mention_silence(at_s)

    @property
    def _is_full(self) -> bool:
        return self._core.is_full or self._core.in_flight_bytes + self._waiting_bytes >= self._bytes_max

    def _patience(self) -> float | None:
        """How long to wait for something to happen; None is for ever."""
        if self._eager:
            return 0.0
        dues_s = [] if self._core.due_s is None else [self._core.due_s]
        if self._probe is not None:
            dues_s += [] if self._warned else [self._started_s + FIRST_WORD_S]
            dues_s += [] if self._patience_s is None else [self._started_s + self._patience_s]
        return min(max(0.0, min(dues_s) - now_s()), WAIT_S_MAX) if dues_s else None

    def _open_letters(self) -> None:
        for item in self._queue.drain():
            if isinstance(item, StopNow):
                self._stopped = True
            elif isinstance(item, Call):
                item.run()
            else:
                raise item  # what the relay died of

    # --- the server, before the first message ---

    def _look_for_the_server(self) -> None:
        """Raises UserError when it is there and lets nobody in."""
        if self._probe is None:
            return
        self._probe.check()
        if _events(self._probe.socket) & POLLOUT:
            self._close_probe()

    def _close_probe(self) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            self._selector.unregister(probe.socket.FD)
            self._selector.unregister(probe.monitor.FD)
            probe.close()
            probe.socket.close(linger=0)

    def _mention_silence(self, at_s: float) -> None:
        silence_s = at_s - self._started_s
        if self._patience_s is not None and silence_s >= self._patience_s:
            raise UserError(
                f"no server answered at {self._upstream} for {self._patience_s:g} s; "
                "start it, or check injector.upstream"
            )
        if silence_s >= FIRST_WORD_S and not self._warned:
            self._warned = True
            bound = (
                "for ever, because injector.patience_s is null"
                if self._patience_s is None
                else f"until {self._patience_s:g} s are over (injector.patience_s)"
            )
            log.warning("no server answers at %s yet; trying on %s", self._upstream, bound)

    # --- what comes in ---

    def _serve_front(self) -> None:
        if not _events(self._front) & POLLIN:
            self._limiter.at_rest = True
            return
        self._limiter.at_rest = False
        for _ in range(TURN_MESSAGES):
            if self._is_full:
                self._stalled[self._serve_front] = None
                return
            try:
                route, header, *cargo = _received(self._front)
            except zmq.Again:
                self._limiter.drained()
                self._limiter.at_rest = True
                return
            connection = self._limiter.heard(route)
            if len(cargo) > FRAMES_MAX:
                self._limiter.cut(connection, TOO_MANY_FRAMES)
            else:
                self._take_in(route, header, cargo)
        self._eager[self._serve_front] = None

    def _take_in(self, route_frame: zmq.Frame, header: zmq.Frame, cargo: list[zmq.Frame]) -> None:
        route = route_frame.bytes
        key = self._authenticator.key_of(route_frame)
        self._core.on_message(route, Direction.UP, header.bytes, cargo, now_s(), key)
        if self._relay is not None and route not in self._ports:
            client_id, port = self._core.client_of(route), _port_behind(route_frame)
            if client_id is not None and port is not None:
                self._ports[route] = port, client_id
                self._relay.speaks_for(port, client_id)

    def _serve_back(self, back: _Back) -> None:
        if not back.is_open:
            return
        readiness = _events(back.socket)
        if readiness & POLLOUT and back.waiting:
            self._send_what_waits(back)
        if not readiness & POLLIN:
            return
        for _ in range(TURN_MESSAGES):
            if self._is_full:
                self._stalled[back.serve] = None
                return
            try:
                header, *cargo = _received(back.socket)
            except zmq.Again:
                return
            self._core.on_message(back.route, Direction.DOWN, header.bytes, cargo, now_s())
        self._eager[back.serve] = None

    # --- what goes on ---

    def _send_up(self, message: Forward) -> None:
        route = message.connection
        assert isinstance(route, bytes)
        back = self._backs.get(route)
        if back is None and self._core.is_open(route):  # else it has ended within this turn
            back = self._opened(route)
        if back is None:
            return
        if back.waiting or not self._sent_up(back, message):
            if len(back.waiting) >= WAITING_MAX:
                self._tally.overflowed += 1
                return
            back.waiting.append(message)
            self._waiting_bytes += _size_bytes(message)

    def _send_what_waits(self, back: _Back) -> None:
        while back.waiting and self._sent_up(back, back.waiting[0]):
            self._waiting_bytes -= _size_bytes(back.waiting.popleft())

    def _sent_up(self, back: _Back, message: Forward) -> bool:
        """Whether the connection to the server took it."""
        self._eager[back.serve] = None
        try:
            _send(back.socket, message.header, message.cargo)
        except zmq.Again:
            return False
        self._went_on(message)
        return True

    def _send_down(self, message: Forward) -> None:
        route = message.connection
        assert isinstance(route, bytes)
        self._eager[self._serve_front] = None
        try:
            self._front.send(route, MORE | NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self._let_go(route)  # it is gone, or does not read: the server is to see that, too
            return
        _send(self._front, message.header, message.cargo)
        self._went_on(message)

    def _went_on(self, message: Forward) -> None:
        self._tally.went_on(up=message.direction is Direction.UP, delay_s=message.due_s - message.entered_s)

    # --- connections ---

    def _opened(self, route: bytes) -> _Back | None:
        if len(self._backs) >= self._connections_max:
            self._core.closed(route)
            if not self._warned_of_many:
                self._warned_of_many = True
                log.warning(
                    "over %d connections; what comes on further ones is dropped", self._connections_max
                )
            return None
        back = self._backs[route] = _Back(route, self._connect(), self._serve_back)
        self._selector.register(back.socket.FD, selectors.EVENT_READ, back.serve)
        return back

    def _cut(self, route: bytes) -> None:
        """Both connections break. The core drops what the client said before it knew."""
        self._close(route, linger_s=0)
        if not self._reset_below(route):
            self._core.closed(route)  # it lives on, and what comes next is answered with `hello-first`

    def _let_go(self, route: bytes) -> None:
        self._core.closed(route)
        self._reset_below(route)  # while bytes stand still there, connections that were left would pile up
        self._close(route)

    def _reset_below(self, route: bytes) -> bool:
        """Whether there is a relay, which breaks the connection now."""
        known = self._ports.pop(route, None)
        if known is None or self._relay is None:
            return False
        self._relay.cut(*known)
        return True

    def _close(self, route: bytes, linger_s: float | None = None) -> None:
        """End the connection to the server, if there is one. linger_s: for what is unsent; None as configured."""
        back = self._backs.pop(route, None)
        if back is None:
            return
        back.is_open = False
        self._waiting_bytes -= sum(map(_size_bytes, back.waiting))
        self._selector.unregister(back.socket.FD)
        back.socket.close(linger=None if linger_s is None else int(linger_s * 1000))


def _events(socket: zmq.Socket[bytes]) -> int:
    """What a socket is ready for. Asking makes it tell of the next change again."""
    events = socket.getsockopt(zmq.EVENTS)
    assert isinstance(events, int)
    return events


def _received(socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
    """One message, uncopied; of more frames than it may have, one more than that. Raises zmq.Again when there is
    none."""
    frames = [socket.recv(NOBLOCK, copy=False)]
    while frames[-1].more and len(frames) < 3 + FRAMES_MAX:
        frames.append(socket.recv(copy=False))
    if frames[-1].more:
        sockets.drop_rest(socket)
    return frames


def _send(socket: zmq.Socket[bytes], header: bytes, cargo: Sequence[Any]) -> None:
    """One message, its frames uncopied. Raises zmq.Again before any of it is taken."""
    last = len(cargo)
    socket.send(header, NOBLOCK | MORE if cargo else NOBLOCK)
    for position, frame in enumerate(cargo, start=1):
        socket.send(frame, MORE if position < last else 0, copy=False)


def _size_bytes(message: Forward) -> int:
    return len(message.header) + sum(map(len, message.cargo))


def _port_behind(frame: zmq.Frame) -> int | None:
    """The port at the other end of the connection that a frame came on; None when that is no more."""
    try:
        with plain.socket(fileno=os.dup(int(frame.get(zmq.SRCFD)))) as connection:
            port: int = connection.getpeername()[1]
            return port
    except (OSError, zmq.ZMQError):
        return None
