"""The protocol thread: one poll on a ROUTER socket and a queue until the next timer is due, and nothing slow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from unstale.net import connections
from unstale.net.limiter import ConnectionLimiter
from unstale.server.commands import QueueItem
from unstale.server.protocol import ServerProtocol
from unstale.server.transport import Delivery
from unstale_client.net import sockets
from unstale_client.net.wakeable_queue import Ping, WakeableQueue
from unstale_proto.limits import FRAMES_MAX

TURN_MESSAGES = 64  # messages taken in before timers and results get their turn
_MORE = int(zmq.SNDMORE)  # as numbers: putting two flags of an enumeration together takes longer than sending
_MORE_AT_ONCE = int(zmq.SNDMORE) | int(zmq.NOBLOCK)
FRAMES_KEPT = 64 * 1024  # bytes; smaller frames are copied into the message, larger are referred to


class RouterTransport:
    """A ROUTER socket as the server protocol sees it. Protocol thread only."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        # pyzmq's own sending, without the layer around it for options of sockets that this one is not.
        self._send = super(zmq.Socket, socket).send

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


@dataclass(kw_only=True, eq=False)
class Loop:
    """Handles messages, results and timers until the run is over."""

    socket: zmq.Socket[bytes]
    queue: WakeableQueue[QueueItem | Ping]
    protocol: ServerProtocol
    clock: Callable[[], float]
    key_of: Callable[[zmq.Frame], str | None]  # public key of the sender of a frame, None in plain text
    limiter: ConnectionLimiter

    def __post_init__(self) -> None:
        self._more_waits = False
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)
        self._poller.register(self.queue.fileno(), zmq.POLLIN)

    def run(self, *, ended: Callable[[], None]) -> None:
        """Run until the protocol is over; call `ended` when it has an outcome. Re-raises the end of a thread."""
        while not self.protocol.is_over:
            self._turn()
            if self.protocol.outcome is not None:
                ended()

    def _turn(self) -> None:
        due_s = self.protocol.due_s
        ready = dict(self._poller.poll(None if due_s is None else max(0, int((due_s - self.clock()) * 1000) + 1)))
        if self.queue.fileno() in ready:
            for item in self.queue.drain():
                if isinstance(item, Ping):
                    item.answered.set()
                else:
                    self.protocol.on_result(item)
        if self.socket in ready:
            self.limiter.at_rest = False
            self._receive_some()
        self.protocol.flush(more_waits=self._more_waits)
        self.limiter.at_rest = not self._more_waits

    def _receive_some(self) -> None:
        self._more_waits = True
        for _ in range(TURN_MESSAGES):
            received = sockets.receive_routed(self.socket, payload_bytes_max=self.protocol.payload_bytes_max)
            if received is None:
                self._more_waits = False
                self.limiter.drained()
                break
            route, header, payload, dropped = received
            connection = self.limiter.heard(route)
            frames = [frame.buffer for frame in payload]
            self.protocol.on_message(route.bytes, header, frames, key=self.key_of(route))
            if dropped > FRAMES_MAX:
                self.limiter.cut(connection, connections.TOO_MANY_FRAMES)
