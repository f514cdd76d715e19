"""Connections as in ZeroMQ: order is kept, and messages in transit at a break are lost in part.

Neither side learns at once that a connection has broken, and what had arrived before may be read after the next
connection's first words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from swarm.world import World
from unstale.gateway.transport import Delivery

Frames = Sequence[memoryview]

NEAR, FAR = 0, 1  # the side that connects, and the one that listens


class End(Protocol):
    """The owner of one side of connections. link: the connection."""

    def receive(self, link: "Link", header: bytes, frames: Frames) -> None:
        """A message arrived."""
        ...

    def lost(self, link: "Link") -> None:
        """The connection is closed, as this side sees it."""
        ...


@dataclass(slots=True)
class _Line:
    """One direction. last_s: when the last message arrives. broken_at: how many of those sent arrive, None for all."""

    last_s: float = 0.0
    sent: int = 0
    arrived: int = 0
    broken_at: int | None = None


@dataclass(slots=True, eq=False)
class Link:
    """A connection. number: unique. open: its state as each side sees it."""

    number: int
    ends: tuple[End, End]
    open: list[bool] = field(default_factory=lambda: [True, True])
    broken: bool = False
    lines: tuple[_Line, _Line] = field(default_factory=lambda: (_Line(), _Line()))  # by the side that sends

    @property
    def route(self) -> bytes:
        """Its route id of a ROUTER."""
        return b"\0" + self.number.to_bytes(4, "big")


class Network:
    """delay_s: upper bound per message. queue_max: messages in transit that one side accepts for the other."""

    def __init__(self, world: World, *, delay_s: float, notice_s: float, queue_max: int) -> None:
        self._world = world
        self._rng = world.draws("network")
        self._delay_s = delay_s
        self._notice_s = notice_s
        self._queue_max = queue_max
        self._links = 0
        self.messages = 0
        self.bytes = 0

    def connect(self, near: End, far: End) -> Link:
        """A new connection between two sides."""
        self._links += 1
        return Link(self._links, (near, far))

    def send(self, link: Link, side: int, header: bytes, frames: Frames) -> Delivery:
        """Send from one side; whether it was accepted. An accepted message may still be lost."""
        line = link.lines[side]
        if not link.open[side]:
            return Delivery.GONE
        if line.sent - line.arrived >= self._queue_max:
            return Delivery.FULL
        line.sent += 1
        if link.broken:
            return Delivery.SENT
        self.messages += 1
        line.last_s = max(line.last_s, self._world.now_s + self._delay_s * float(self._rng.random()))
        number, receiver = line.sent, link.ends[1 - side]

        def arrive() -> None:
            line.arrived += 1
            if link.open[1 - side] and (line.broken_at is None or number <= line.broken_at):
                receiver.receive(link, header, frames)

        self._world.at(line.last_s, arrive)
        return Delivery.SENT

    def close(self, link: Link, side: int) -> None:
        """One side closes: its messages arrive, then the other side learns of it. Messages to it are lost."""
        link.open[side] = False
        if not link.broken:
            link.broken = True
            self._notice(link, 1 - side, max(link.lines[side].last_s, self._world.now_s))

    def cut(self, link: Link) -> None:
        """The connection breaks: of the messages in transit, a first part still arrives."""
        if link.broken:
            return
        link.broken = True
        self._world.seen["connections broken"] += 1
        for line in link.lines:
            line.broken_at = line.arrived + int(self._rng.integers(line.sent - line.arrived + 1))
        for side in (NEAR, FAR):
            self._notice(link, side, self._world.now_s + self._notice_s * float(self._rng.random()))

    def _notice(self, link: Link, side: int, at_s: float) -> None:
        """Notify a side, after the messages that still arrive there."""

        def notice() -> None:
            if link.open[side]:
                link.open[side] = False
                link.ends[side].lost(link)

        self._world.at(max(at_s, link.lines[1 - side].last_s), notice)


Dial = Callable[["End"], Link | None]
"""Connects a side to its listener; None without one."""
