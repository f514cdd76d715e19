"""What the injector decides, without a socket or a clock: which message goes on, when, and as what. Pure.

    take_in(connection, direction, header, cargo, at_s)   a message came, perhaps with the key of who sent it
    closed(connection)                                    a connection is gone
    change(toxics), let_go(at_s)                          what the operator wants
    release(at_s) -> [Forward | Cut | Close, ...]         what is to be done by now, in order

`release` is called after each `on_message` or some of them, and when `due_s` has come. A connection is any key that
names one. It speaks for a client from its `hello` on. What comes before that, and what cannot be read, passes
untouched, in its order.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence, Sized
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any, cast

from unstale.toxics.in_flight import Direction, InFlightMessage, MessageType
from unstale.toxics.link import Applied, ToxicLink
from unstale_proto import codec
from unstale_proto.errors import Reason
from unstale_proto.messages import Error

MESSAGES_MAX = 100_000  # in flight; some 50 MB of our own beside what they hold
TASKS_KEPT = 32  # of a client, whose attempts are counted; it works on one and may have a few unanswered
LEASE_S = 20.0  # assumed until a welcome tells
IDLE_LEASES = 3  # a connection silent for so many leases is given up by both of its ends
DROPPED_KEPT = 1024  # places in the queue of messages that are lost, before they are swept out

Connection = Hashable
Cargo = Sequence[Sized]
"""Payload frames, each with a length in bytes and a buffer. They are handed on, and copied only to be damaged."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Send this on: to the server where direction is up, to the client where it is down.

    Also what the injector itself says to the server on behalf of a client: `error unavailable`. entered_s, due_s: when
    it came, and when it was to go on, by the clock of at_s.
    """

    connection: Connection
    direction: Direction
    header: bytes
    cargo: Cargo
    entered_s: float
    due_s: float


@dataclass(frozen=True, slots=True)
class Cut:
    """Break this connection, towards the client and towards the server: all that was on it is lost.

    The client is away for down_s seconds: until then, each connection that says hello for it is cut again. What still
    comes on a cut connection is dropped until it is `closed`.
    """

    connection: Connection
    client_id: int
    down_s: float


@dataclass(frozen=True, slots=True)
class Close:
    """Nothing more is expected on this connection: let go of it. It need not be `closed`."""

    connection: Connection


Output = Forward | Cut | Close


@dataclass(slots=True, eq=False)
class _Held:
    """A message that waits, or a cut. output: None once it is lost with its connection."""

    channel: "_Channel"
    output: Forward | Cut | None
    size_bytes: int


@dataclass(slots=True, eq=False)
class _Channel:
    """A connection. client_id: None before a hello. last_s: when the last message of a direction goes on that keeps its
    place. held: what waits on it, as an ordered set."""

    connection: Connection
    heard_s: float
    client_id: int | None = None
    session: str | None = None
    is_cut: bool = False
    last_s: dict[Direction, float] = field(default_factory=dict)
    held: dict[_Held, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Task:
    """began_s: of the scenario, when it first entered. seen: messages that carried its id, by type."""

    began_s: float | None = None
    seen: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Client:
    """channel: over which it said its newest hello. down_until_s: when it may come back. counts: messages so far.
    tasks: the newest."""

    channel: _Channel
    down_until_s: float = 0.0
    counts: Counter[tuple[Direction, str]] = field(default_factory=Counter)
    tasks: OrderedDict[int, _Task] = field(default_factory=OrderedDict)


class Core:
    """link: what messages pass through. clients: of the run; ids run below it. started_s: when the scenario began,
    by the clock of every at_s. bytes_max: in flight, for `is_full`. may_speak: whether the owner of a public key may
    say that it is a client; None for a link without keys. refused: messages that were not for their senders to say.
    """

    def __init__(
        self,
        link: ToxicLink,
        *,
        clients: int,
        started_s: float,
        bytes_max: int,
        may_speak: Callable[[str | None, int], bool] | None = None,
    ) -> None:
        self.link = link
        self.refused = 0
        self._may_speak = may_speak
        self.in_flight_messages = 0
        self.in_flight_bytes = 0
        self._clients_max = clients
        self._started_s = started_s
        self._bytes_max = bytes_max
        self._lease_s = LEASE_S
        self._lines: OrderedDict[Connection, _Channel] = OrderedDict()  # that which was silent longest first
        self._clients: dict[int, _Client] = {}
        self._queue: list[tuple[float, int, _Held]] = []
        self._sequence = 0
        self._at_once: list[Output] = []

    # ------------------------------------------------------------------------------------------------ what can be asked

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be taken in until something has left."""
        return self.in_flight_bytes >= self._bytes_max or self.in_flight_messages >= MESSAGES_MAX

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._lines)

    @property
    def due_s(self) -> float | None:
        """When `release` wants to be called next, by the clock of at_s; None is never."""
        if self._at_once:
            return self._started_s
        while self._queue and self._queue[0][2].output is None:
            heappop(self._queue)
        dues_s = [self._queue[0][0]] if self._queue else []
        if self._lines:
            dues_s.append(next(iter(self._lines.values())).heard_s + IDLE_LEASES * self._lease_s)
        return min(dues_s, default=None)

    def is_open(self, connection: Connection) -> bool:
        """Whether messages go over a connection: it is neither cut nor closed."""
        channel = self._lines.get(connection)
        return channel is not None and not channel.is_cut

    def client_of(self, connection: Connection) -> int | None:
        """The client for whom a connection speaks, or None before its hello."""
        channel = self._lines.get(connection)
        return None if channel is None else channel.client_id

    # -------------------------------------------------------------------------------------------------- what happened

    def on_message(
        self,
        connection: Connection,
        direction: Direction,
        header: bytes,
        cargo: Cargo,
        at_s: float,
        key: str | None = None,
    ) -> None:
        """A message came: from the client where direction is up, from the server where it is down.

        key: public key of the client, as its handshake proved it; None in plain text.
        """
        channel = self._lines.get(connection)
        if channel is None:
            channel = self._lines[connection] = _Channel(connection, at_s)
        channel.heard_s = at_s
        self._lines.move_to_end(connection)
        if channel.is_cut:
            return
        glance = codec.peek(header)
        if direction is Direction.UP and not self._is_owner(channel, glance, key):
            self._refuse(channel, at_s)
            return
        if glance is not None:
            if glance.type == "hello" and direction is Direction.UP:
                self._admit(channel, glance, at_s)
                if channel.is_cut:
                    return
            elif glance.type == "welcome" and direction is Direction.DOWN and glance.lease_s is not None:
                self._lease_s = glance.lease_s
        size_bytes = len(header) + sum(map(len, cargo))
        flight = (
            None
            if glance is None
            else self._flight(channel, direction, glance, len(header), size_bytes, at_s)
        )
        if flight is None:
            self._forward(
                channel, Forward(channel.connection, direction, header, cargo, at_s, at_s), size_bytes
            )
            return
        for one in self.link.send(flight):
            self._hold(channel, one, header, cargo, at_s)

    def closed(self, connection: Connection) -> None:
        """A connection is gone, on whichever side, and all that was on it is lost."""
        channel = self._lines.pop(connection, None)
        if channel is not None:
            self._lose_all(channel)

    def change(self, toxics: Sequence[Applied]) -> None:
        """From here on, messages go through these. Counts of those that are no more are forgotten with their names."""
        self.link.change(toxics)
        for name in self.link.touched.keys() - {one.toxic.name for one in toxics}:
            del self.link.touched[name]

    def let_go(self, at_s: float) -> None:
        """All that waits is due now, in the order in which it would have come, and lines begin anew."""
        queue = []
        for due_s, _, held in sorted(self._queue):
            if held.output is None:
                continue
            if isinstance(held.output, Forward):
                held.output = replace(held.output, due_s=min(held.output.due_s, at_s))
            queue.append((min(due_s, at_s), self._sequence, held))
            self._sequence += 1
        self._queue = queue  # sorted, which is a heap
        for channel in self._lines.values():
            channel.last_s.clear()
        for client_id in self._clients:
            self.link.forget_client(client_id)

    def release(self, at_s: float) -> list[Output]:
        """What is to be done by now, in order."""
        outputs: list[Output] = [*self._at_once, *self._idle(at_s)]
        self._at_once.clear()
        while self._queue and self._queue[0][0] <= at_s:
            due_s, _, held = heappop(self._queue)
            if held.output is None:
                continue
            del held.channel.held[held]
            self._uncount(held)
            outputs.append(held.output)
            if isinstance(held.output, Cut):
                self._cut(held.channel, due_s + held.output.down_s)
        return outputs

    # --------------------------------------------------------------------------------------------- clients and numbers

    def _is_owner(self, channel: _Channel, glance: codec.Glance | None, key: str | None) -> bool:
        """Whether a message is for its sender to say. The server can no longer tell: it sees the injector's key."""
        if self._may_speak is None:
            return True
        if glance is not None and glance.type == "hello":
            return glance.client_id is not None and self._may_speak(key, glance.client_id)
        return channel.client_id is None or self._may_speak(key, channel.client_id)

    def _refuse(self, channel: _Channel, at_s: float) -> None:
        """Nothing goes on of it or after it on this connection, and the server finds that the client is gone."""
        self.refused += 1
        reason = Reason.NOT_THE_OWNER
        error = codec.encode(
            Error(reason=reason, message="the key of this connection does not own that client")
        )
        self._at_once.append(Forward(channel.connection, Direction.DOWN, error, (), at_s, at_s))
        self.closed(channel.connection)
        self._at_once.append(Close(channel.connection))

    def _admit(self, channel: _Channel, hello: codec.Glance, at_s: float) -> None:
        """From here on a connection speaks for the client that said hello, or is cut when that comes too early."""
        client_id = hello.client_id
        if client_id is None or client_id >= self._clients_max or hello.session is None:
            return  # the server will refuse it
        channel.client_id, channel.session = client_id, hello.session
        client = self._clients.setdefault(client_id, _Client(channel))
        if at_s < client.down_until_s:
            self._cut(channel, client.down_until_s)
            self._at_once.append(Cut(channel.connection, client_id, client.down_until_s - at_s))
            return
        if client.channel is channel:
            return
        before = client.channel
        client.channel = channel
        self.link.forget_client(client_id)
        # The same process has left its former connection. Another one's is still to hear that it is superseded.
        if before.session == hello.session and self._lines.get(before.connection) is before:
            self.closed(before.connection)
            self._at_once.append(Close(before.connection))

    def _flight(
        self,
        channel: _Channel,
        direction: Direction,
        glance: codec.Glance,
        header_bytes: int,
        size_bytes: int,
        at_s: float,
    ) -> InFlightMessage | None:
        """The message as the toxics see it; None when they cannot, or when there are none."""
        if channel.client_id is None:
            return None
        client = self._clients[channel.client_id]
        sent_s = at_s - self._started_s
        began_s, attempt = sent_s, 0
        if glance.type in ("task", "update"):
            if glance.task_id is None:
                return None
            number = glance.task_id
            task = self._task(client, number)
            attempt = task.seen[glance.type]
            task.seen[glance.type] += 1
            if glance.type == "task" and task.began_s is None:
                task.began_s = sent_s
            began_s = sent_s if task.began_s is None else task.began_s
        else:
            number = client.counts[direction, glance.type]
            client.counts[direction, glance.type] += 1
        if not self.link.toxics:
            return None
        return InFlightMessage(
            client_id=channel.client_id,
            direction=direction,
            type=cast(MessageType, glance.type),
            number=number,
            sent_s=sent_s,
            due_s=sent_s,
            began_s=began_s,
            size_bytes=size_bytes,
            header_bytes=header_bytes,
            version=glance.version if glance.type == "task" else None,
            attempt=attempt,
        )

    def _task(self, client: _Client, task_id: int) -> _Task:
        task = client.tasks.get(task_id)
        if task is None:
            task = client.tasks[task_id] = _Task()
            if len(client.tasks) > TASKS_KEPT:
                client.tasks.popitem(last=False)
        return task

    # ------------------------------------------------------------------------------------------------------- the queue

    def _hold(
        self, channel: _Channel, flight: InFlightMessage, header: bytes, cargo: Cargo, at_s: float
    ) -> None:
        # Not simply started_s + due_s, which may differ from at_s in the last bit where nothing is added.
        due_s = at_s if flight.due_s <= flight.sent_s else max(at_s, self._started_s + flight.due_s)
        if flight.cuts:
            self._push(channel, due_s, Cut(channel.connection, flight.client_id, flight.down_s), 0)
            return
        if flight.declined:
            error = codec.encode(Error(reason=Reason.UNAVAILABLE, task_id=flight.number))
            answer = Forward(channel.connection, Direction.UP, error, (), at_s, due_s)
            self._push(channel, due_s, answer, len(error))
            return
        if flight.damage:
            header, cargo = damaged(header, cargo, flight.damage)
        forward = Forward(channel.connection, flight.direction, header, cargo, at_s, due_s)
        if flight.in_order:
            self._forward(channel, forward, flight.size_bytes)
        else:
            self._push(channel, due_s, forward, flight.size_bytes)

    def _forward(self, channel: _Channel, forward: Forward, size_bytes: int) -> None:
        """Behind what goes the same way before it. The passage sees to it, but for messages that it does not see."""
        due_s = max(forward.due_s, channel.last_s.get(forward.direction, forward.due_s))
        channel.last_s[forward.direction] = due_s
        self._push(channel, due_s, forward, size_bytes)

    def _push(self, channel: _Channel, due_s: float, output: Forward | Cut, size_bytes: int) -> None:
        held = _Held(channel, output, size_bytes)
        channel.held[held] = None
        heappush(self._queue, (due_s, self._sequence, held))
        self._sequence += 1
        self.in_flight_messages += 1
        self.in_flight_bytes += size_bytes

    def _uncount(self, held: _Held) -> None:
        self.in_flight_messages -= 1
        self.in_flight_bytes -= held.size_bytes

    def _cut(self, channel: _Channel, until_s: float) -> None:
        assert channel.client_id is not None
        self._clients[channel.client_id].down_until_s = until_s
        self._lose_all(channel)
        channel.is_cut = True

    def _lose_all(self, channel: _Channel) -> None:
        """What is on a connection is lost, and its client's next one begins anew."""
        for held in channel.held:
            held.output = None
            self._uncount(held)
        channel.held.clear()
        if channel.client_id is not None and self._clients[channel.client_id].channel is channel:
            self.link.forget_client(channel.client_id)
        if len(self._queue) > self.in_flight_messages + DROPPED_KEPT:
            self._queue = [entry for entry in self._queue if entry[2].output is not None]
            heapify(self._queue)

    def _idle(self, at_s: float) -> list[Close]:
        """Connections that both ends have given up."""
        given_up = []
        while self._lines:
            channel = next(iter(self._lines.values()))
            if channel.heard_s + IDLE_LEASES * self._lease_s > at_s:
                break
            if channel.held:
                channel.heard_s = at_s
                self._lines.move_to_end(channel.connection)
                continue
            given_up.append(Close(channel.connection))
            self.closed(channel.connection)
        return given_up


def damaged(header: bytes, cargo: Cargo, bits: Sequence[int]) -> tuple[bytes, Cargo]:
    """A message with bits flipped, counted from the first bit of the header through all frames, the highest bit of a
    byte first. Frames without damage stay as they are, the others are copied."""
    frames: list[Any] = [header, *cargo]
    for bit in bits:
        place, offset = 0, bit // 8
        while offset >= len(frames[place]):
            offset -= len(frames[place])
            place += 1
        if not isinstance(frames[place], bytearray):
            frames[place] = bytearray(frames[place])
        frames[place][offset] ^= 0x80 >> bit % 8
    return bytes(frames[0]), frames[1:]
