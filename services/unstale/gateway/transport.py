"""The interface between the server protocol and a ROUTER socket or a simulated network, and a buffer in front of it."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

ROUTE_MAX = 2048  # messages kept for one connection: answers to all that a client may say at once
ROUTE_PAYLOADS_MAX = 16  # of these with payload, which is referred to and not copied: chunks of one credit
MESSAGES_MAX = 16_384  # kept for all connections: a few MiB
KEEP_S = 10.0  # a connection that takes nothing for so long is not read from
PAUSE_S, PAUSE_S_MAX = 0.005, 0.5  # before it is tried again; twice as long each time


class Delivery(Enum):
    """Result of sending a message."""

    SENT = "sent"  # it may still be lost
    GONE = "gone"  # the connection is closed
    FULL = "full"  # the queue of the connection is full


class Transport(Protocol):
    """Sends to connections, each known by its routing id. Never waits."""

    def wrap(self, frames: Sequence[memoryview]) -> Sequence[Any]:
        """Payload frames in the form in which `send` takes them, made once however often they are sent."""
        ...

    def send(self, route: bytes, header: bytes, frames: Sequence[Any] = ()) -> Delivery:
        """One message to one connection. frames: as `wrap` made them."""
        ...


@dataclass(slots=True)
class _Buffer:
    """Messages for one connection. number: counts buffers. since_s: when it took one last. due_s: when it is tried
    again, after pause_s.
    """

    number: int
    since_s: float
    due_s: float
    pause_s: float = PAUSE_S
    payloads: int = 0
    messages: deque[tuple[bytes, Sequence[Any]]] = field(default_factory=deque)


class BufferedTransport:
    """Buffers messages for a moment when the queue of a connection, which is short, is full. One thread."""

    def __init__(self, transport: Transport, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._clock = clock
        self._buffers: dict[bytes, _Buffer] = {}
        self._dues: list[tuple[float, int, bytes]] = []  # heap of due time, number and route; old ones too
        self._numbers = count()
        self._count = 0
        self.wrap = transport.wrap

    @property
    def due_s(self) -> float | None:
        """Time at which `flush` is due; None for never."""
        dues = self._dues
        while dues and not self._is_current(dues[0]):
            heappop(dues)
        return dues[0][0] if dues else None

    def send(self, route: bytes, header: bytes, frames: Sequence[Any] = ()) -> Delivery:
        """Send now or in a moment. `FULL` when the route is not read from, or too much is kept, which is dropped."""
        kept = self._buffers.get(route)
        if kept is None:
            delivery = self._transport.send(route, header, frames)
            if delivery is not Delivery.FULL:
                return delivery
        at_s = self._clock()
        if kept is None:
            kept = self._buffers[route] = _Buffer(next(self._numbers), at_s, at_s + PAUSE_S)
            heappush(self._dues, (kept.due_s, kept.number, route))
        if (
            at_s >= kept.since_s + KEEP_S
            or len(kept.messages) >= ROUTE_MAX
            or self._count >= MESSAGES_MAX
            or (frames and kept.payloads >= ROUTE_PAYLOADS_MAX)
        ):
            self._drop(route)
            return Delivery.FULL
        kept.messages.append((header, frames))
        kept.payloads += bool(frames)
        self._count += 1
        return Delivery.SENT

    def flush(self) -> None:
        """Send buffered messages, as far as possible."""
        if not self._dues:
            return
        at_s = self._clock()
        due = []
        while self._dues and self._dues[0][0] <= at_s:
            entry = heappop(self._dues)
            if self._is_current(entry):
                due.append(entry[1:])
        for _, route in sorted(due):  # the oldest buffer first
            self._try(route, self._buffers[route], at_s)

    def _is_current(self, due: tuple[float, int, bytes]) -> bool:
        kept = self._buffers.get(due[2])
        return kept is not None and kept.number == due[1]

    def _try(self, route: bytes, kept: _Buffer, at_s: float) -> None:
        while kept.messages:
            header, frames = kept.messages[0]
            delivery = self._transport.send(route, header, frames)
            if delivery is Delivery.FULL:
                kept.pause_s = min(2 * kept.pause_s, PAUSE_S_MAX)
                kept.due_s = at_s + kept.pause_s
                heappush(self._dues, (kept.due_s, kept.number, route))
                return
            if delivery is Delivery.GONE:
                break
            kept.since_s, kept.pause_s = at_s, PAUSE_S
            kept.messages.popleft()
            kept.payloads -= bool(frames)
            self._count -= 1
        self._drop(route)

    def _drop(self, route: bytes) -> None:
        self._count -= len(self._buffers.pop(route).messages)
