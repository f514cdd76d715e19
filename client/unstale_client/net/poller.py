"""Finds which of many sockets are ready, at the cost of those in use: `zmq.Poller` visits each open one, every time."""

import selectors

import zmq

Socket = zmq.Socket[bytes]
Source = Socket | int
"""A socket, or a file descriptor, which is polled for input."""


class Poller:
    """For one thread.

    The file descriptor of a ZeroMQ socket only signals that its events may have changed, and each call on the socket
    may take that signal. So a socket that was used has to be asked for its events, until these are none that count.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._events: dict[Socket, int] = {}  # that count
        self._used: dict[Socket, None] = {}  # in order; each other one signals its next event

    def register(self, source: Source, events: int = zmq.POLLIN) -> None:
        """Poll a source for these events from now on. Call it again after a use of a socket that the latest `poll` did
        not return.
        """
        if isinstance(source, int):
            self._selector.register(source, selectors.EVENT_READ, source)
            return
        if source not in self._events:
            self._selector.register(_fd(source), selectors.EVENT_READ, source)
        self._events[source] = int(events)  # not an enum, which is slow
        self._used[source] = None

    def unregister(self, source: Source) -> None:
        """Call it before the socket closes."""
        if isinstance(source, int):
            self._selector.unregister(source)
            return
        self._selector.unregister(_fd(source))
        del self._events[source]
        self._used.pop(source, None)

    def poll(self, timeout_s: float | None) -> list[tuple[Source, int]]:
        """Wait for events, for ever if the timeout is None. It may also return none before."""
        ready: dict[Source, int] = {}
        for socket in list(self._used):
            self._ask(socket, ready)
        for key, _ in self._selector.select(0 if ready else timeout_s):
            if isinstance(key.data, int):
                ready[key.data] = zmq.POLLIN
            else:
                self._ask(key.data, ready)
        return list(ready.items())

    def close(self) -> None:
        """Close the poller, but none of the sources."""
        self._selector.close()

    def _ask(self, socket: Socket, ready: dict[Source, int]) -> None:
        events = int(socket.getsockopt(zmq.EVENTS)) & self._events[socket]
        if events:
            ready[socket] = events
            self._used[socket] = None
        else:
            self._used.pop(socket, None)


def _fd(socket: Socket) -> int:
    return int(socket.getsockopt(zmq.FD))
