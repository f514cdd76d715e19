"""A queue to a thread that polls sockets: a post wakes the poll through a socket pair, on every platform."""

import socket
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ping:
    """Checks that the reading thread responds, by setting `answered`."""

    answered: threading.Event = field(default_factory=threading.Event)


class WakeableQueue(Generic[T]):
    """A FIFO queue with one reading thread. `fileno` is readable while it holds items."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._closed = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def post(self, item: T) -> None:
        """Add an item and wake the reader. Any thread, signal handlers included; also after `close`."""
        self._items.append(item)
        if self._closed:
            return
        try:
            self._writer.send(b"\0")
        except BlockingIOError:
            return  # full of wake-ups
        except OSError:
            if not self._closed:  # by another thread
                raise

    def drain(self) -> list[T]:
        """Take all items, oldest first. The reading thread only."""
        with suppress(BlockingIOError):  # empty
            while self._reader.recv(4096):
                pass
        items: list[T] = []
        while self._items:
            items.append(self._items.popleft())
        return items

    def close(self) -> None:
        """Read no more. Later items, of a second Ctrl-C for example, are never read."""
        self._closed = True
        self._reader.close()
        self._writer.close()
