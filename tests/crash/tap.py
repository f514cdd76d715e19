"""Recorder between injector and server: a byte relay that parses ZMTP 3.1 from the server.

It is not a ZeroMQ socket, so a connection that breaks on one side breaks on the other, and no message is repeated or
queued. The bytes of a server that died still arrive; each complete message counts as sent.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from unstale_proto import codec
from unstale_proto.messages import Ack, Heartbeat, Message, Stop, Task, Welcome

CHUNK_BYTES = 1 << 16
PATIENCE_S = 30.0

_GREETING_BYTES = 64
_MORE, _LONG, _COMMAND = 1, 2, 4  # flags of a frame, ZMTP 3.1


@dataclass(slots=True)
class ServerMessages:
    """Messages of a server, over its restarts. run_ids: in welcomes and tasks. acks, tasks: every copy, in order."""

    run_ids: set[str] = field(default_factory=set)
    acks: list[Ack] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    version: int = 0

    def note(self, message: Message) -> None:
        if isinstance(message, Welcome | Task | Heartbeat | Stop):
            self.version = max(self.version, message.version)
        if isinstance(message, Welcome | Task) and message.run_id is not None:
            self.run_ids.add(message.run_id)
        if isinstance(message, Ack):
            self.acks.append(message)
        elif isinstance(message, Task):
            self.tasks.append(message)


class Tap:
    """Listens at `port` in its context. server: port of the server, which may be down.

    on_version: called, from any thread, with each newer version.
    """

    def __init__(self, server: int, on_version: Callable[[int], None]) -> None:
        self.sent = ServerMessages()
        self._server = server
        self._on_version = on_version
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(PATIENCE_S)
        self._listener.close()
        with self._lock:
            for one in self._open:
                _break(one)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "the tap does not end"

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True, name="tap")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # it was shut down
            try:
                far = socket.create_connection(("127.0.0.1", self._server))
            except OSError:
                near.close()  # no server: the caller sees the closed connection
                continue
            with self._lock:
                self._open |= {near, far}
            ends = threading.Semaphore(1)  # the second to end closes both
            self._start(self._pass_on, near, far, None, ends)
            self._start(self._pass_on, far, near, Frames(), ends)

    def _pass_on(
        self, source: socket.socket, sink: socket.socket, frames: "Frames | None", ends: threading.Semaphore
    ) -> None:
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):  # broken by the other side
            while data := source.recv(CHUNK_BYTES):
                if frames is not None:
                    self._read(frames, data)
                sink.sendall(data)
        with self._lock:
            for one in (source, sink):
                _break(one)
            if not ends.acquire(blocking=False):
                self._open -= {source, sink}
                source.close()
                sink.close()

    def _read(self, frames: "Frames", data: bytes) -> None:
        for header in frames.feed(data):
            message = codec.decode(header)
            with self._lock:
                before = self.sent.version
                self.sent.note(message)
                is_newer = self.sent.version > before
            if is_newer:
                self._on_version(message.version)  # type: ignore[attr-defined]


class Frames:
    """Splits one direction of a connection into frames. Source: ZMTP 3.1, "Framing"."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._greeted = False
        self._in_message = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The first frame of each completed message."""
        self._data += data
        if not self._greeted:
            if len(self._data) < _GREETING_BYTES:
                return
            del self._data[:_GREETING_BYTES]
            self._greeted = True
        while (frame := self._next()) is not None:
            flags, body = frame
            if flags & _COMMAND:
                continue
            if not self._in_message:
                yield body
            self._in_message = bool(flags & _MORE)

    def _next(self) -> tuple[int, bytes] | None:
        if len(self._data) < 2:
            return None
        flags = self._data[0]
        start = 9 if flags & _LONG else 2
        if len(self._data) < start:
            return None
        size = struct.unpack(">Q", self._data[1:9])[0] if flags & _LONG else self._data[1]
        if len(self._data) < start + size:
            return None
        body = bytes(self._data[start : start + size])
        del self._data[: start + size]
        return flags, body


def _break(one: socket.socket) -> None:
    with suppress(OSError):  # it is broken already
        one.shutdown(socket.SHUT_RDWR)
