"""A bound ROUTER socket of this process, with its authenticator and the limits on its connections."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import zmq

from unstale.gateway.port import Counts, Incoming, PortSettings
from unstale.gateway.transport import Delivery
from unstale.net import authorized_keys, connections
from unstale.net.limiter import ConnectionLimiter
from unstale.net.memory import MemoryBound, resident_bytes_with_parent
from unstale.net.zap import ZapAuthenticator
from unstale_client.net import sockets
from unstale_proto.limits import FRAMES_MAX, HEADER_BYTES_MAX

TURN_MESSAGES = 64  # messages that `receive` yields at most
_MORE = int(zmq.SNDMORE)  # as numbers: putting two flags of an enumeration together takes longer than sending
_MORE_AT_ONCE = int(zmq.SNDMORE) | int(zmq.NOBLOCK)
FRAMES_KEPT = 64 * 1024  # bytes; smaller frames are copied into the message, larger are referred to


class RouterPort:
    """A `Port` of this process. Made: bound, or raises UserError. Its callbacks run in threads of its own."""

    def __init__(
        self,
        settings: PortSettings,
        *,
        speaks: Callable[[bytes], bool],
        payload_bytes_max: Callable[[bytes], int],
        on_cut: Callable[[bytes | None, str], None],
        on_refused: Callable[[str], None],
        on_crash: Callable[[BaseException], None],
        listening: int | None = None,
    ) -> None:
        """speaks: whether a routing id speaks for a client now. payload_bytes_max: longest payload that it may send.
        on_cut: takes the routing id, None before the first message, and the reason of a cut. on_refused: takes the
        reason of a refused handshake. on_crash: takes the error that ended a thread. listening: descriptor of a
        listening socket of the address, which belongs to the port from now on; None to make one.
        """
        self._payload_bytes_max = payload_bytes_max
        self.more_waits = False
        with ExitStack() as stack:
            self._authenticator = ZapAuthenticator(
                settings.keys, authorized_keys.SERVER, "server.keys", refused=on_refused, on_crash=on_crash
            )
            context = sockets.new_context()
            stack.callback(context.term)
            self.socket = sockets.router(context, heartbeat_s=settings.heartbeat_s, linger_s=settings.linger_s)
            stack.callback(self.socket.close)
            # Before the socket that it guards, and the context that waits for both.
            stack.callback(self._authenticator.close)
            self._limiter = ConnectionLimiter(
                settings.limits,
                is_client=speaks,
                message_bytes_max=HEADER_BYTES_MAX + settings.update_bytes_max,
                memory=_memory_bound(settings),
                on_cut=on_cut,
                on_failed=self._authenticator.on_handshake_failed,
                on_crash=on_crash,
            )
            stack.callback(self._limiter.close)
            self._authenticator.start(context, self.socket)
            self._limiter.watch(context, self.socket)
            if listening is not None:
                self.socket.setsockopt(zmq.USE_FD, listening)
            self.address = sockets.bind(self.socket, settings.address)
            self._closing = stack.pop_all()
        self.may_speak, self.owner_of = self._authenticator.may_speak, self._authenticator.owner_of
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)
        self._queue: int | None = None
        # pyzmq's own sending, without the layer around it for options of sockets that this one is not.
        self._send = super(zmq.Socket, self.socket).send

    def wrap(self, frames: Sequence[memoryview]) -> list[zmq.Frame]:
        """Frames that every message which carries them refers to."""
        return [zmq.Frame(frame, copy=len(frame) < FRAMES_KEPT) for frame in frames]

    def send(self, route: bytes, header: bytes, frames: Sequence[Any] = ()) -> Delivery:
        """Send a message, if possible."""
        try:
            self._send(route, _MORE_AT_ONCE)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return Delivery.GONE
            if error.errno == zmq.EAGAIN:
                return Delivery.FULL
            raise
        self._send(header, _MORE if frames else 0)
        for position, frame in enumerate(frames, start=1):
            self._send(frame, _MORE if position < len(frames) else 0, copy=False)
        return Delivery.SENT

    def wait(self, queue: int, timeout_ms: int | None) -> bool:
        """Wait for messages, for the descriptor of a queue, or for so long. Whether the queue is readable."""
        if queue != self._queue:
            self._poller.register(queue, zmq.POLLIN)
            self._queue = queue
        return queue in dict(self._poller.poll(timeout_ms))

    def receive(self) -> Iterator[Incoming]:
        """At most `TURN_MESSAGES` messages."""
        self._limiter.at_rest = False
        self.more_waits = True
        for _ in range(TURN_MESSAGES):
            received = sockets.receive_routed(self.socket, payload_bytes_max=self._payload_bytes_max)
            if received is None:
                self.more_waits = False
                self._limiter.drained()
                return
            route, header, payload, dropped = received
            connection = self._limiter.heard(route)
            if dropped > FRAMES_MAX:
                self._limiter.cut(connection, connections.TOO_MANY_FRAMES)
            yield Incoming(route.bytes, header, [frame.buffer for frame in payload], self._authenticator.key_of(route))

    def turned(self) -> None:
        self._limiter.at_rest = not self.more_waits

    def counts(self) -> Counts:
        """Any thread."""
        table = self._limiter.table
        return Counts(table.clients, table.strangers, self._limiter.addresses_limited)

    def close(self) -> None:
        """Send what waits, for at most the linger time, and end. Twice is allowed."""
        self._closing.close()


def _memory_bound(settings: PortSettings) -> MemoryBound:
    if not settings.gateways:
        return MemoryBound(settings.memory_bytes_max)
    return MemoryBound(settings.memory_bytes_max, used=partial(resident_bytes_with_parent, settings.gateways))
