"""A queue into a thread that waits on sockets: posting wakes its poll.

ZeroMQ sockets belong to one thread each, so that other threads and signal handlers need a door of their own. A socket
pair is one that every platform can poll and that may be written to from anywhere.
"""

import socket
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks the reading thread whether it still turns. answered: set by it."""

    answered: threading.Event = field(default_factory=threading.Event)

    def is_answered(self, within_s: float) -> bool:
        return self.answered.wait(within_s)


class WakeableQueue(Generic[T]):
    """Posts from any thread, read by one. Order is kept. `fileno` is readable while something waits."""

    def __init__(self) -> None:
        self._waiting: deque[T] = deque()
        self._closed = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def post(self, item: T) -> None:
        """Add an item and wake the reader, if there still is one. Any thread, signal handlers included."""
        self._waiting.append(item)
        if self._closed:
            return
        try:
            self._writer.send(b"\0")
        except BlockingIOError:
            return  # the pipe is full of wake-ups: the reader has one to come
        except OSError:
            if not self._closed:  # closed since we looked
                raise

    def drain(self) -> list[T]:
        """Everything posted so far, oldest first. The reading thread only."""
        try:
            while self._reader.recv(4096):
                pass
        except BlockingIOError:
            pass  # emptied: that is how a non-blocking socket says so
        items: list[T] = []
        while self._waiting:
            items.append(self._waiting.popleft())
        return items

    def close(self) -> None:
        """Read no more. What is posted from now on, by a second Ctrl-C perhaps, is for nobody."""
        self._closed = True
        self._reader.close()
        self._writer.close()
