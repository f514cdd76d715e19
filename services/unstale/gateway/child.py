"""One gateway process, as the server sees it: its link, its shared memory, and the connections that it has."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from unstale.gateway.link import Link, LinkEndedError, mapped, shared_file
from unstale.gateway.port import NO_CONNECTIONS, Counts, Incoming, PortSettings
from unstale.gateway.process import Kind, packed
from unstale_client.net.clock import now_s

PROGRAM = "unstale.gateway.process"
SILENT_S = 2.0  # without a report, of which one is due each second, a process may be busy
END_S = 1.0  # that a process takes to end when its link has


class Child:
    """A started process. It is ready once it has sent READY."""

    def __init__(self, prefix: bytes, settings: PortSettings, memory_bytes: int, listening: socket.socket) -> None:
        """prefix: of the routing ids of its connections, unique in the run. memory_bytes: shared memory for the
        payloads that it receives. listening: which it accepts connections from; stays open here. Raises OSError.
        """
        self.prefix = prefix
        self.started_s = now_s()
        self.is_ready = False
        self.counts = NO_CONNECTIONS
        self.counted_s = self.started_s  # time of the latest report of them
        self.waits = False  # whether it has messages that it has not received
        self.clients: set[bytes] = set()
        """Routing ids, without prefix, of which it knows that they speak for a client."""
        self._spoken_to: set[bytes] = set()  # others that were sent something in this turn
        self._outgoing: list[tuple[bytes, bytes, list[Any], Sequence[Any]]] = []
        self._taken: int | None = None  # value of the ring that was read last and is not reported
        with ExitStack() as stack:
            ours, theirs = socket.socketpair()
            self.link = Link(ours)
            undo = stack.enter_context(ExitStack())
            undo.callback(self.link.close)
            stack.enter_context(theirs)
            descriptors = (theirs.fileno(), shared_file(memory_bytes), os.dup(listening.fileno()))
            for descriptor in descriptors[1:]:
                stack.callback(os.close, descriptor)
            self._process = subprocess.Popen(  # noqa: S603  (Python itself, and a module of ours)
                [sys.executable, "-m", PROGRAM, *map(str, descriptors)], pass_fds=descriptors, stdin=subprocess.DEVNULL
            )
            self._memory = mapped(descriptors[1], memory_bytes)
            undo.pop_all()
        self.link.post((Kind.START, packed(settings), memory_bytes))

    def may_have_messages(self, at_s: float) -> bool:
        """Whether messages may wait there, or on the way: also while it starts, or has not been heard of for long."""
        return not self.is_ready or self.waits or self.link.more_waits or at_s > self.counted_s + SILENT_S

    def send(self, route: bytes, header: bytes, frames: list[Any], kept: Sequence[Any]) -> None:
        """Send a message with the next `post`. route: with prefix. frames: bytes, or numbers of published ones. kept:
        objects that stay alive until then.
        """
        route = route[len(self.prefix) :]
        if route not in self.clients:
            self._spoken_to.add(route)
        self._outgoing.append((route, header, frames, kept))

    def post(self, speaks: Callable[[bytes], bool], *, looks: bool = False) -> None:
        """Pass on what was sent, and what was read. First, which connections speak for a client from now on.

        speaks: whether a routing id does. looks: at all connections, for those that do no more.
        """
        added = [route for route in self._spoken_to if speaks(self.prefix + route)]
        removed = [route for route in self.clients if not speaks(self.prefix + route)] if looks else []
        self._spoken_to.clear()
        if added or removed:
            self.clients.update(added)
            self.clients.difference_update(removed)
            self.link.post((Kind.CLIENTS, added, removed))
        for route, header, frames, _ in self._outgoing:
            self.link.post((Kind.SEND, route, header, frames))
        self._outgoing.clear()
        if self._taken is not None:
            self.link.post((Kind.TAKEN, self._taken))
            self._taken = None

    def values(self) -> Iterator[Incoming | tuple[Any, ...]]:
        """What has come: messages, and values of other kinds. Raises LinkEndedError after the last one."""
        for value in self.link.receive():
            yield self._message(*value[1:]) if value[0] == Kind.MESSAGE else value

    def _message(
        self, route: bytes, header: bytes, frames: Sequence[Any], key: str | None, end: int | None
    ) -> Incoming:
        memory = self._memory
        if end == -1:
            file = self.link.take_descriptor()
            try:
                memory = mapped(file, os.fstat(file).st_size)
            finally:
                os.close(file)
        elif end is not None:
            self._taken = end
        payload = [
            memoryview(frame) if isinstance(frame, bytes) else memory[frame[0] : frame[0] + frame[1]]
            for frame in frames
        ]
        return Incoming(self.prefix + route, header, payload, key)

    def note(self, kind: Kind, content: Sequence[Any]) -> None:
        """Note what the process says of itself."""
        if kind is Kind.COUNTS:
            self.counts, self.counted_s = Counts(*content), now_s()
        elif kind is Kind.WAITS:
            self.waits = content[0]
        else:
            assert kind is Kind.READY, kind
            self.is_ready = True

    def kill(self) -> str:
        """Make sure that the process has ended. Returns how, for people: ` with exit code 1`, ` by SIGABRT`."""
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self.link.close()
        return f" with exit code {code}" if code >= 0 else f" by {signal.Signals(-code).name}"

    def end(self, end_s: float) -> None:
        """Let it send what waits, and end, by a time."""
        self.link.post((Kind.CLOSE,))
        poll = select.poll()
        try:
            while now_s() < end_s:
                self.link.flush()
                poll.register(self.link.fileno(), select.POLLIN | (select.POLLOUT if self.link.waits else 0))
                poll.poll(100)
                for _ in self.link.receive():
                    pass
        except LinkEndedError:
            pass
        self.kill()
