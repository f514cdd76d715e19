"""Forwards messages between clients, on a ROUTER, and the server, on a DEALER for each client connection.

So the server, too, has a connection for each client. Payload frames are not copied. The thread of the proxy waits for
its sockets, its queue and the next output that is due.
"""

import logging
import os
import selectors
import socket as system_socket
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import zmq

from unstale.injector import calls
from unstale.injector.calls import CallQueue
from unstale.injector.core import Close, Core, Cut, Forward
from unstale.injector.numbers import Numbers, Tally
from unstale.injector.relay import WAIT_S_MAX, Relay
from unstale.injector.toxic_collection import ToxicCollection
from unstale.injector.upstream import Upstream
from unstale.net.connections import TOO_MANY_FRAMES
from unstale.net.limiter import ConnectionLimiter
from unstale.net.zap import ZapAuthenticator
from unstale.toxics.in_flight import Direction
from unstale.toxics.link import Counts
from unstale_client.net import sockets
from unstale_client.net.clock import now_s
from unstale_proto.errors import Reason
from unstale_proto.limits import FRAMES_MAX

log = logging.getLogger("unstale.injector")

# Integers, because the enumerations of pyzmq cost more than the rest of a turn.
NOBLOCK, MORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
POLLIN, POLLOUT = int(zmq.POLLIN), int(zmq.POLLOUT)

TURN_MESSAGES = 64  # received from one socket before the thread serves other sockets
WAITING_MAX = 16  # messages of a connection that wait for the server; a client sends a hello every 5 s


@dataclass(slots=True, eq=False)
class _Backend:
    """The connection to the server for one client connection."""

    route: bytes  # routing id of the client connection
    socket: zmq.Socket[bytes]
    serve: Callable[[], None] = field(init=False)
    waiting: deque[Forward] = field(default_factory=deque)  # until the server reads
    is_open: bool = True


@dataclass(slots=True, eq=False, kw_only=True)
class Proxy:
    """Forwards messages of at most connections_max client connections until `stop`."""

    front: zmq.Socket[bytes]  # bound, for the clients
    authenticator: ZapAuthenticator
    limiter: ConnectionLimiter
    refused: Counter[str]  # handshakes that the authenticator refused, by reason
    upstream: Upstream
    core: Core
    collection: ToxicCollection
    queue: CallQueue
    relay: Relay | None
    connections_max: int

    _tally: Tally = field(default_factory=Tally, init=False)
    _backends: dict[bytes, _Backend] = field(default_factory=dict, init=False)
    _ports: dict[bytes, tuple[int, int]] = field(default_factory=dict, init=False)
    """Port at the relay and client id of a client connection, by route."""
    _waiting_bytes: int = field(default=0, init=False)  # of all `_Backend.waiting`
    _stopped: bool = field(default=False, init=False)
    _has_warned: bool = field(default=False, init=False)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector, init=False)
    # An ordered set. A ZeroMQ descriptor signals changes only, so after each use a socket must be served again.
    _next_turn: dict[Callable[[], None], None] = field(default_factory=dict, init=False)
    _stalled: dict[Callable[[], None], None] = field(default_factory=dict, init=False)  # functions until not `_is_full`

    def __post_init__(self) -> None:
        self._selector.register(self.queue, selectors.EVENT_READ, lambda: calls.serve(self.queue))
        self._selector.register(self.front.FD, selectors.EVENT_READ, self._serve_front)
        for descriptor in self.upstream.descriptors:
            self._selector.register(descriptor, selectors.EVENT_READ, self._check_upstream)
        self._next_turn[self._check_upstream] = None

    def run(self) -> Numbers:
        """Run until `stop`. Raises UserError if the server cannot be reached."""
        while not self._stopped:
            self._turn()
        return self.numbers()

    def stop(self) -> None:
        """End `run`. Call it in the proxy's thread only."""
        self._stopped = True

    def close(self) -> None:
        for route in list(self._backends):
            self._close_backend(route)
        self._end_probe()
        self._selector.close()
        calls.cancel_all(self.queue)

    # --- functions that other threads queue for the proxy's thread ---

    def numbers(self) -> Numbers:
        counts = self.core.link.counts
        relay_counts = Counts() if self.relay is None else self.relay.counts
        touched, faults = relay_counts.touched.copy(), relay_counts.faults.copy()  # the relay's thread changes them
        touched.update(counts.touched)
        faults.update(counts.faults)
        return Numbers(
            scenario_s=self.scenario_s,
            connections=len(self._backends),
            in_flight_messages=self.core.in_flight_messages + sum(len(one.waiting) for one in self._backends.values()),
            in_flight_bytes=self.core.in_flight_bytes + self._waiting_bytes,
            touched={applied.toxic.name: touched[applied.toxic.name] for applied in self.collection.applied},
            faults=dict(faults),
            refused={**self.refused, Reason.NOT_THE_OWNER.value: self.core.refused},
            **asdict(self._tally),
        )

    @property
    def scenario_s(self) -> float:
        return now_s() - self.core.started_s

    def replace_toxics(self, collection: ToxicCollection, *, ends_delays: bool) -> None:
        """Replace the toxics. ends_delays: forward delayed messages now."""
        previous, self.collection = self.collection, collection
        self.core.link.change(collection.of_messages)
        if ends_delays:
            self.core.end_delays(now_s())
        if self.relay is not None and collection.of_bytes != previous.of_bytes:
            self.relay.change(collection.of_bytes)

    # --- one turn ---

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._timeout_s()):
            self._next_turn[key.data] = None
        ready, self._next_turn = self._next_turn, {}
        for serve in ready:
            serve()
        at_s = now_s()
        self._perform(at_s)
        if self._stalled and not self._is_full:
            self._next_turn.update(self._stalled)
            self._stalled.clear()
        self.upstream.check_patience(at_s)

    def _perform(self, at_s: float) -> None:
        for output in self.core.release(at_s):
            match output:
                case Forward(direction=Direction.UP):
                    self._send_up(output)
                case Forward():
                    self._send_down(output)
                case Cut(connection=bytes(route)):
                    self._cut(route)
                case Close(connection=bytes(route)):
                    self._close_both(route)

    @property
    def _is_full(self) -> bool:
        return self.core.is_full or self.core.in_flight_bytes + self._waiting_bytes >= self.core.bytes_max

    def _timeout_s(self) -> float | None:
        """Longest wait for an event; None for no limit."""
        if self._next_turn:
            return 0.0
        dues_s = [self.core.due_s, self.upstream.due_s]
        due_s = min((due_s for due_s in dues_s if due_s is not None), default=None)
        return None if due_s is None else min(max(0.0, due_s - now_s()), WAIT_S_MAX)

    def _check_upstream(self) -> None:
        """Raises UserError if the server refuses the injector."""
        if self.upstream.is_reached():
            self._end_probe()

    def _end_probe(self) -> None:
        for descriptor in self.upstream.descriptors:
            self._selector.unregister(descriptor)
        self.upstream.close()

    # --- incoming messages ---

    def _serve_front(self) -> None:
        self.limiter.at_rest = not _events(self.front) & POLLIN
        if not self.limiter.at_rest and self._receive(self.front, self._on_front, self._serve_front):
            self.limiter.drained()
            self.limiter.at_rest = True

    def _on_front(self, route_frame: zmq.Frame, header: zmq.Frame, *cargo: zmq.Frame) -> None:
        connection = self.limiter.heard(route_frame)
        if len(cargo) > FRAMES_MAX:
            self.limiter.cut(connection, TOO_MANY_FRAMES)
            return
        route, key = route_frame.bytes, self.authenticator.key_of(route_frame)
        self.core.on_message(route, Direction.UP, header.bytes, cargo, now_s(), key)
        if self.relay is not None and route not in self._ports:
            client_id, port = self.core.client_of(route), _remote_port(route_frame)
            if client_id is not None and port is not None:
                self._ports[route] = port, client_id
                self.relay.assign(port, client_id)

    def _serve_back(self, back: _Backend) -> None:
        if not back.is_open:
            return
        readiness = _events(back.socket)
        if readiness & POLLOUT and back.waiting:
            self._send_waiting(back)
        if readiness & POLLIN:
            self._receive(back.socket, partial(self._on_back, back.route), back.serve)

    def _on_back(self, route: bytes, header: zmq.Frame, *cargo: zmq.Frame) -> None:
        self.core.on_message(route, Direction.DOWN, header.bytes, cargo, now_s())

    def _receive(self, socket: zmq.Socket[bytes], on_frames: Callable[..., None], serve: Callable[[], None]) -> bool:
        """Receive up to `TURN_MESSAGES` messages. Returns whether no more wait; otherwise `serve` is called later."""
        for _ in range(TURN_MESSAGES):
            if self._is_full:
                self._stalled[serve] = None
                return False
            try:
                frames = _received(socket)
            except zmq.Again:
                return True
            on_frames(*frames)
        self._next_turn[serve] = None
        return False

    # --- outgoing messages ---

    def _send_up(self, message: Forward) -> None:
        route = message.connection
        assert isinstance(route, bytes)
        back = self._backends.get(route)
        if back is None and self.core.is_open(route):  # else an output of this turn has closed it
            back = self._open(route)
        if back is None:
            return
        if back.waiting or not self._try_send_up(back, message):
            if len(back.waiting) >= WAITING_MAX:
                self._tally.overflowed += 1
                return
            back.waiting.append(message)
            self._waiting_bytes += message.size_bytes

    def _send_waiting(self, back: _Backend) -> None:
        while back.waiting and self._try_send_up(back, back.waiting[0]):
            self._waiting_bytes -= back.waiting.popleft().size_bytes

    def _try_send_up(self, back: _Backend, message: Forward) -> bool:
        """Send a message to the server. Returns False if the socket does not accept it now."""
        self._next_turn[back.serve] = None
        try:
            _send(back.socket, message.header, message.cargo)
        except zmq.Again:
            return False
        self._tally.count_forwarded(up=True, delay_s=message.due_s - message.entered_s)
        return True

    def _send_down(self, message: Forward) -> None:
        route = message.connection
        assert isinstance(route, bytes)
        self._next_turn[self._serve_front] = None
        try:
            self.front.send(route, MORE | NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self._close_both(route)  # the client has disconnected or does not read; the server must notice this, too
            return
        _send(self.front, message.header, message.cargo)
        self._tally.count_forwarded(up=False, delay_s=message.due_s - message.entered_s)

    # --- connections ---

    def _open(self, route: bytes) -> _Backend | None:
        if len(self._backends) >= self.connections_max:
            self.core.closed(route)
            if not self._has_warned:
                self._has_warned = True
                log.warning("over %d connections; messages of further ones are dropped", self.connections_max)
            return None
        back = self._backends[route] = _Backend(route, self.upstream.connect())
        back.serve = partial(self._serve_back, back)
        self._selector.register(back.socket.FD, selectors.EVENT_READ, back.serve)
        return back

    def _cut(self, route: bytes) -> None:
        """Break both connections. The core drops messages until the client notices."""
        self._close_backend(route, linger_ms=0)
        if not self._reset_relayed(route):
            self.core.closed(route)  # it stays open; the server answers its next message with `hello-first`

    def _close_both(self, route: bytes) -> None:
        self.core.closed(route)
        self._reset_relayed(route)  # otherwise connections with delayed bytes accumulate in the relay
        self._close_backend(route)

    def _reset_relayed(self, route: bytes) -> bool:
        """Make the relay reset a client connection. Returns False if the connection is not relayed."""
        port_and_client = self._ports.pop(route, None)
        if port_and_client is None or self.relay is None:
            return False
        self.relay.cut(*port_and_client)
        return True

    def _close_backend(self, route: bytes, linger_ms: int | None = None) -> None:
        """Close the connection to the server. linger_ms: None for the socket's own."""
        back = self._backends.pop(route, None)
        if back is None:
            return
        back.is_open = False
        self._waiting_bytes -= sum(message.size_bytes for message in back.waiting)
        self._selector.unregister(back.socket.FD)
        back.socket.close(linger=linger_ms)


def _events(socket: zmq.Socket[bytes]) -> int:
    """Events of a socket. Reading them makes its descriptor signal the next change."""
    events = socket.getsockopt(zmq.EVENTS)
    assert isinstance(events, int)
    return events


def _received(socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
    """Receive a message without a copy, cut to one frame over the limit. Raises zmq.Again if none waits."""
    frames = [socket.recv(NOBLOCK, copy=False)]
    while frames[-1].more and len(frames) < 3 + FRAMES_MAX:
        frames.append(socket.recv(copy=False))
    if frames[-1].more:
        sockets.drop_rest(socket)
    return frames


def _send(socket: zmq.Socket[bytes], header: bytes, cargo: Sequence[Any]) -> None:
    """Send one message without a copy. Raises zmq.Again if the socket accepts none of it. cargo: payload frames."""
    last = len(cargo)
    socket.send(header, NOBLOCK | MORE if cargo else NOBLOCK)
    for position, frame in enumerate(cargo, start=1):
        socket.send(frame, MORE if position < last else 0, copy=False)


def _remote_port(frame: zmq.Frame) -> int | None:
    """The remote port of the connection that brought a frame; None if it is closed."""
    try:
        with system_socket.socket(fileno=os.dup(int(frame.get(zmq.SRCFD)))) as connection:
            port: int = connection.getpeername()[1]
            return port
    except (OSError, zmq.ZMQError):
        return None
