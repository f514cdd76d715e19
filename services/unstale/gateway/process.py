"""A gateway: a process that has the server's ROUTER socket, and passes messages between it and the server.

    python -m unstale.gateway.process LINK MEMORY LISTENING

The arguments are descriptors that it inherits: of its link to the server, of shared memory for the payloads that it
receives, and of the listening socket. The first value on the link is its settings. It ends when the link does, so that
it never outlives the server. Whatever ends it ends no run: the server starts another one.
"""

import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from enum import IntEnum
from typing import Any

import zmq
from typing_extensions import override

from unstale.errors import UserError
from unstale.gateway.link import Link, LinkEndedError, RingWriter, mapped, shared_file
from unstale.gateway.port import Incoming, PortSettings
from unstale.gateway.router import RouterPort
from unstale.gateway.transport import BufferedTransport, Delivery
from unstale.net.connections import ConnectionLimits
from unstale_client.net.clock import now_s
from unstale_client.net.wakeable_queue import WakeableQueue

INLINE_BYTES = 4096  # a longer payload goes through shared memory
COUNTS_S = 1.0  # between two reports of the connections


class Kind(IntEnum):
    """What a value says.

    To the gateway:
        START: PortSettings as a map, and the bytes of the shared memory.
        SEND: routing id, header, frames: each of them bytes, or the number of a published one.
        PUBLISH: number and size of a frame; with a descriptor of its memory.
        DROP: number of a published frame that is sent no more.
        CLIENTS: routing ids that speak for a client from now on, and ids that do no more.
        TAKEN: everything before this value of the ring may be overwritten.
        CLOSE: send what waits, and end.
    From it:
        READY: its address.
        REFUSED: the error message.
        MESSAGE: routing id, header, frames (bytes, or position and length), key, and the value of the ring that
            releases them; None for none. With a descriptor of the frames' memory if the value is -1.
        LOST: routing id, and whether its queue was full; else the connection is gone.
        CUT: routing id or None, and the reason.
        HANDSHAKE_REFUSED: the reason.
        COUNTS: as `Counts`, at least once a second.
        WAITS: whether messages wait that the gateway has not received.
        LOG: level, logger, text, peer.
    """

    START = 1
    SEND = 2
    PUBLISH = 3
    DROP = 4
    CLIENTS = 5
    TAKEN = 6
    CLOSE = 7
    READY = 8
    REFUSED = 9
    MESSAGE = 10
    LOST = 11
    CUT = 12
    HANDSHAKE_REFUSED = 13
    COUNTS = 14
    LOG = 15
    WAITS = 16


def packed(settings: PortSettings) -> dict[str, Any]:
    """Settings as a map of plain values."""
    return asdict(settings)


def unpacked(values: dict[str, Any]) -> PortSettings:
    return PortSettings(**values | {"limits": ConnectionLimits(**values["limits"])})


class _ToServer(logging.Handler):
    """Passes log records to the server, which limits and writes them as its own."""

    def __init__(self, queue: WakeableQueue[Sequence[Any]]) -> None:
        super().__init__()
        self._queue = queue

    @override
    def emit(self, record: logging.LogRecord) -> None:
        peer = getattr(record, "peer", None)
        text = record.getMessage()
        self._queue.post((Kind.LOG, record.levelno, record.name, text, None if peer is None else str(peer)))


class Gateway:
    """Passes messages until the link ends, or `CLOSE`."""

    def __init__(self, link: Link, memory: int, listening: int) -> None:
        self._link = link
        self._listening = listening
        self._memory_file = memory
        self._queue: WakeableQueue[Sequence[Any]] = WakeableQueue()  # values that other threads post
        self._clients: set[bytes] = set()
        self._published: dict[int, Any] = {}
        self._unsent: Incoming | None = None  # for which the shared memory has no room now
        self._crash: BaseException | None = None
        self._closes = False
        self._counts_s = 0.0
        self._waits = False  # as the server was told

    def run(self) -> None:
        """Raises LinkEndedError, and the error that ended a thread."""
        logging.getLogger().addHandler(_ToServer(self._queue))
        logging.getLogger().setLevel(logging.INFO)
        settings, memory_bytes = self._started()
        self._ring, self._memory = RingWriter(memory_bytes), mapped(self._memory_file, memory_bytes)
        os.close(self._memory_file)
        try:
            self._port = RouterPort(
                settings,
                speaks=self._clients.__contains__,
                payload_bytes_max=lambda route: settings.update_bytes_max if route in self._clients else 0,
                on_cut=lambda route, reason: self._queue.post((Kind.CUT, route, reason)),
                on_refused=lambda reason: self._queue.post((Kind.HANDSHAKE_REFUSED, reason)),
                on_crash=self._crashed,
                listening=self._listening,
            )
        except UserError as error:
            self._link.post((Kind.REFUSED, str(error)))
            self._link.flush()
            return
        self._transport = BufferedTransport(self._port, now_s)
        self._poller = zmq.Poller()
        self._poller.register(self._queue.fileno(), zmq.POLLIN)
        self._link.post((Kind.READY, self._port.address))
        while not self._closes:
            self._turn()
        self._transport.flush()
        self._port.close()

    def _started(self) -> tuple[PortSettings, int]:
        poller = zmq.Poller()
        poller.register(self._link.fileno(), zmq.POLLIN)
        while True:
            poller.poll()
            for kind, *content in self._link.receive():
                assert kind == Kind.START, kind
                return unpacked(content[0]), content[1]

    def _crashed(self, error: BaseException) -> None:
        self._crash = error
        self._queue.post(())

    def _turn(self) -> None:
        self._wait()
        for value in self._queue.drain():
            if value:
                self._link.post(value)
        if self._crash is not None:
            raise self._crash
        for value in self._link.receive():
            self._handle(Kind(value[0]), *value[1:])
        if self._unsent is not None and self._pass_on(self._unsent):
            self._unsent = None
        if self._takes_messages:
            self._receive()
        self._transport.flush()
        self._report()
        self._link.flush()
        self._port.turned()

    def _report(self) -> None:
        """Tell the server which connections there are, once a second, and whether messages wait, when that changes."""
        at_s = now_s()
        if at_s >= self._counts_s + COUNTS_S:
            self._counts_s = at_s
            self._link.post((Kind.COUNTS, *self._port.counts()))
        waits = self._port.more_waits or not self._takes_messages
        if waits is not self._waits:
            self._waits = waits
            self._link.post((Kind.WAITS, waits))

    @property
    def _takes_messages(self) -> bool:
        """Whether the server can take more messages from here now."""
        return self._unsent is None and not self._link.waits

    def _wait(self) -> None:
        """Wait for the link, the queue, a timer, and messages if they can be taken."""
        poller = self._poller
        poller.register(self._link.fileno(), zmq.POLLIN | (zmq.POLLOUT if self._link.waits else 0))
        poller.register(self._port.socket, zmq.POLLIN if self._takes_messages else 0)
        poller.poll(self._timeout_ms())

    def _timeout_ms(self) -> int:
        at_s = now_s()
        due_s = self._counts_s + COUNTS_S
        if self._transport.due_s is not None:
            due_s = min(due_s, self._transport.due_s)
        return max(0, int((due_s - at_s) * 1000) + 1)

    # --- to the server ---

    def _receive(self) -> None:
        for message in self._port.receive():
            if not self._pass_on(message):
                self._unsent = message
                return

    def _pass_on(self, message: Incoming) -> bool:
        """Pass a message to the server. False if its payload has no room now."""
        length_bytes = sum(map(len, message.frames))
        if length_bytes <= INLINE_BYTES:
            frames: Sequence[Any] = [bytes(frame) for frame in message.frames]
            self._link.post((Kind.MESSAGE, message.route, message.header, frames, message.key, None))
            return True
        if length_bytes > len(self._memory) // 2:
            self._pass_on_alone(message, length_bytes)
            return True
        piece = self._ring.allocate(length_bytes)
        if piece is None:
            return False
        position, end = piece
        frames = _write(self._memory, position, message.frames)
        self._link.post((Kind.MESSAGE, message.route, message.header, frames, message.key, end))
        return True

    def _pass_on_alone(self, message: Incoming, length_bytes: int) -> None:
        file = shared_file(length_bytes)
        try:
            frames = _write(mapped(file, length_bytes), 0, message.frames)
            self._link.post((Kind.MESSAGE, message.route, message.header, frames, message.key, -1), file)
        finally:
            os.close(file)

    # --- from the server ---

    def _handle(self, kind: Kind, *content: Any) -> None:
        if kind is Kind.SEND:
            self._send(*content)
        elif kind is Kind.TAKEN:
            self._ring.release(content[0])
        elif kind is Kind.CLIENTS:
            self._clients.update(content[0])
            self._clients.difference_update(content[1])
        elif kind is Kind.PUBLISH:
            number, size_bytes = content
            file = self._link.take_descriptor()
            try:
                self._published[number] = self._port.wrap([mapped(file, size_bytes)])[0]
            finally:
                os.close(file)
        elif kind is Kind.DROP:
            self._published.pop(content[0], None)
        elif kind is Kind.CLOSE:
            self._closes = True
        else:
            raise AssertionError(kind)

    def _send(self, route: bytes, header: bytes, frames: Sequence[bytes | int]) -> None:
        wrapped = [
            self._published[frame] if isinstance(frame, int) else self._port.wrap([memoryview(frame)])[0]
            for frame in frames
        ]
        delivery = self._transport.send(route, header, wrapped)
        if delivery is not Delivery.SENT:
            self._link.post((Kind.LOST, route, delivery is Delivery.FULL))


def _write(memory: memoryview, position: int, frames: Sequence[memoryview]) -> list[tuple[int, int]]:
    """Copy frames, one behind the other. Returns the position and length of each."""
    pieces = []
    for frame in frames:
        end = position + len(frame)
        memory[position:end] = frame.cast("B")
        pieces.append((position, len(frame)))
        position = end
    return pieces


def main(link: int, memory: int, listening: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the server ends it
        signal.signal(number, signal.SIG_IGN)
    ours = Link(socket.socket(fileno=link))
    try:
        Gateway(ours, memory, listening).run()
    except LinkEndedError:
        os._exit(0)  # at once, so that the next server can listen there
    ours.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
