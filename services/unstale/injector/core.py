"""The decisions of the injector, without sockets and clock.

    on_message(connection, direction, header, cargo, at_s)   a message arrives
    closed(connection)                                       a connection has ended
    link.change(toxics), end_delays(at_s)                    requests of the operator
    release(at_s) -> [Forward | Cut | Close, ...]            outputs that are due, in order

Call `release` after calls of `on_message`, and at `due_s`. A connection is any key. It belongs to a client from its
`hello` on. Earlier messages, and unreadable ones, pass unchanged and in order.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence, Sized
from dataclasses import KW_ONLY, dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any, cast

from unstale.toxics.in_flight import Direction, InFlightMessage, MessageType
from unstale.toxics.link import ToxicLink
from unstale_proto import codec
from unstale_proto.errors import Reason
from unstale_proto.messages import Error

MESSAGES_MAX = 100_000  # in flight; some 50 MB besides their content
TASKS_KEPT = 32  # of a client, whose attempts are counted
LEASE_S = 20.0  # until a welcome has another one
IDLE_LEASES = 3  # after this many leases without a message, client and server have given up a connection
DROPPED_KEPT = 1024  # lost messages in the queue before it is rebuilt

Connection = Hashable
Cargo = Sequence[Sized]
"""Payload frames: buffers, each with a length in bytes. They are copied only to be damaged."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Send a message to the server (direction up) or to the client (down).

    Also for `error unavailable`, which the injector sends to the server on behalf of a client.
    """

    connection: Connection
    direction: Direction
    header: bytes
    cargo: Cargo
    entered_s: float  # by the clock of at_s
    due_s: float

    @property
    def size_bytes(self) -> int:
        return len(self.header) + sum(map(len, self.cargo))


@dataclass(frozen=True, slots=True)
class Cut:
    """Break a connection on both sides: all messages in flight on it are lost.

    For down_s seconds, connections with a hello of the client are cut again. Messages that still arrive on a cut
    connection are dropped until it is `closed`.
    """

    connection: Connection
    client_id: int
    down_s: float

    @property
    def size_bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection that has no further messages; `closed` is not needed."""

    connection: Connection


Output = Forward | Cut | Close


@dataclass(slots=True, eq=False)
class _Channel:
    """A connection."""

    connection: Connection
    heard_s: float = 0.0  # when the latest message arrived
    client_id: int | None = None  # None before a hello
    is_cut: bool = False
    session: str | None = None
    last_s: dict[Direction, float] = field(default_factory=dict)  # when the last message in order is due
    queued: dict[int, Forward | Cut] = field(default_factory=dict)  # outputs that are not due, by sequence number


@dataclass(slots=True)
class _Task:
    began_s: float | None = None  # of the scenario, when it first arrived
    attempts: Counter[str] = field(default_factory=Counter)  # messages with its id, by type


@dataclass(slots=True)
class _Client:
    channel: _Channel  # of its latest hello
    down_until_s: float = 0.0
    message_counts: Counter[tuple[Direction, str]] = field(default_factory=Counter)
    tasks: OrderedDict[int, _Task] = field(default_factory=OrderedDict)  # the latest

    def count_attempt(self, task_id: int, type_: str, sent_s: float) -> tuple[int, float]:
        """Earlier messages of this type with the id of a task, and when the task was sent."""
        task = self.tasks.setdefault(task_id, _Task())
        if len(self.tasks) > TASKS_KEPT:
            self.tasks.popitem(last=False)
        attempt = task.attempts[type_]
        task.attempts[type_] += 1
        if type_ == "task" and task.began_s is None:
            task.began_s = sent_s
        return attempt, sent_s if task.began_s is None else task.began_s


@dataclass(slots=True, eq=False)
class Core:
    """The state of the injector."""

    link: ToxicLink
    _: KW_ONLY
    clients: int  # their number; ids are smaller
    started_s: float  # start of the scenario, by the clock of every at_s
    bytes_max: int  # in flight, for `is_full`
    may_speak: Callable[[str | None, int], bool] | None = None
    """Whether the owner of a public key may use a client id; None for a link without keys."""

    refused: int = field(default=0, init=False)  # messages whose sender does not own the client
    in_flight_messages: int = field(default=0, init=False)
    in_flight_bytes: int = field(default=0, init=False)
    _lease_s: float = field(default=LEASE_S, init=False)
    _channels: OrderedDict[Connection, _Channel] = field(default_factory=OrderedDict, init=False)
    """The longest silent first."""
    _by_id: dict[int, _Client] = field(default_factory=dict, init=False)
    _queue: list[tuple[float, int, _Channel]] = field(default_factory=list, init=False)
    """A heap of due_s and sequence number of each output; one that its channel lacks is lost."""
    _sequence: int = field(default=0, init=False)
    _at_once: list[Output] = field(default_factory=list, init=False)

    # --- state ---

    @property
    def is_full(self) -> bool:
        """Whether no message should be read until another one has left."""
        return self.in_flight_bytes >= self.bytes_max or self.in_flight_messages >= MESSAGES_MAX

    @property
    def due_s(self) -> float | None:
        """When to call `release` next, by the clock of at_s; None for never."""
        if self._at_once:
            return self.started_s
        while self._queue and not _is_queued(self._queue[0]):
            heappop(self._queue)
        dues_s = [self._queue[0][0]] if self._queue else []
        if self._channels:
            dues_s.append(next(iter(self._channels.values())).heard_s + IDLE_LEASES * self._lease_s)
        return min(dues_s, default=None)

    def is_open(self, connection: Connection) -> bool:
        """Whether a connection is neither cut nor closed."""
        channel = self._channels.get(connection)
        return channel is not None and not channel.is_cut

    def client_of(self, connection: Connection) -> int | None:
        """The client of a connection; None before its hello."""
        channel = self._channels.get(connection)
        return None if channel is None else channel.client_id

    # --- inputs ---

    def on_message(
        self,
        connection: Connection,
        direction: Direction,
        header: bytes,
        cargo: Cargo,
        at_s: float,
        key: str | None = None,
    ) -> None:
        """Process a message of the client (direction up) or of the server (down).

        key: public key of the client from its handshake; None in plain text.
        """
        channel = self._channels.get(connection) or _Channel(connection)
        channel.heard_s = at_s
        self._channels[connection] = channel
        self._channels.move_to_end(connection)
        if channel.is_cut:
            return
        glance = codec.peek(header)
        if direction is Direction.UP:
            if not self._is_owner(channel, glance, key):
                self._refuse(channel, at_s)
                return
            if glance is not None and glance.type == "hello":
                self._admit(channel, glance, at_s)
        elif glance is not None and glance.type == "welcome" and glance.lease_s is not None:
            self._lease_s = glance.lease_s
        if not channel.is_cut:
            self._send(channel, glance, Forward(connection, direction, header, cargo, at_s, at_s))

    def closed(self, connection: Connection) -> None:
        """A connection has ended on either side: its messages in flight are lost."""
        channel = self._channels.pop(connection, None)
        if channel is not None:
            self._lose_all(channel)

    def end_delays(self, at_s: float) -> None:
        """All queued outputs are due now, in their order, and channels are reset."""
        queue = []
        for due_s, sequence, channel in sorted(filter(_is_queued, self._queue)):
            output = channel.queued.pop(sequence)
            if isinstance(output, Forward):
                output = replace(output, due_s=min(output.due_s, at_s))
            channel.queued[self._sequence] = output
            queue.append((min(due_s, at_s), self._sequence, channel))
            self._sequence += 1
        self._queue = queue  # sorted, which is a heap
        for channel in self._channels.values():
            channel.last_s.clear()
        for client_id in self._by_id:
            self.link.forget_client(client_id)

    def release(self, at_s: float) -> list[Output]:
        """Outputs that are due, in order."""
        self._close_idle(at_s)
        outputs, self._at_once = self._at_once, []
        while self._queue and self._queue[0][0] <= at_s:
            due_s, sequence, channel = heappop(self._queue)
            output = channel.queued.pop(sequence, None)
            if output is None:
                continue
            self._uncount(output)
            outputs.append(output)
            if isinstance(output, Cut):
                self._cut(channel, due_s + output.down_s)
        return outputs

    # --- clients ---

    def _is_owner(self, channel: _Channel, glance: codec.Glance | None, key: str | None) -> bool:
        """Whether the sender owns the client. The server sees the injector's key only."""
        if self.may_speak is None:
            return True
        if glance is not None and glance.type == "hello":
            return glance.client_id is not None and self.may_speak(key, glance.client_id)
        return channel.client_id is None or self.may_speak(key, channel.client_id)

    def _refuse(self, channel: _Channel, at_s: float) -> None:
        """Close a connection with an error; the server receives nothing more of it."""
        self.refused += 1
        message = "the key of this connection does not own that client"
        error = codec.encode(Error(reason=Reason.NOT_THE_OWNER, message=message))
        self._at_once.append(Forward(channel.connection, Direction.DOWN, error, (), at_s, at_s))
        self._close(channel)

    def _admit(self, channel: _Channel, hello: codec.Glance, at_s: float) -> None:
        """Assign a connection to the client of a hello, or cut it in its down time."""
        client_id = hello.client_id
        if client_id is None or client_id >= self.clients or hello.session is None:
            return  # the server will refuse it
        channel.client_id, channel.session = client_id, hello.session
        client = self._by_id.setdefault(client_id, _Client(channel))
        if at_s < client.down_until_s:
            self._cut(channel, client.down_until_s)
            self._at_once.append(Cut(channel.connection, client_id, client.down_until_s - at_s))
            return
        if client.channel is channel:
            return
        previous, client.channel = client.channel, channel
        self.link.forget_client(client_id)
        # The process of this session has left its previous connection. Another process must receive that it is
        # superseded.
        if previous.session == hello.session and self._channels.get(previous.connection) is previous:
            self._close(previous)

    # --- messages ---

    def _send(self, channel: _Channel, glance: codec.Glance | None, message: Forward) -> None:
        """Send a message through the link and queue the messages that come out."""
        flight = self._flight(channel, glance, message)
        if flight is None:
            self._queue_in_order(channel, message)
            return
        for one in self.link.send(flight):
            self._queue_flight(channel, one, message)

    def _flight(self, channel: _Channel, glance: codec.Glance | None, message: Forward) -> InFlightMessage | None:
        """A message for the toxics; None if it is unreadable, or there are no toxics."""
        if glance is None or channel.client_id is None:
            return None
        client = self._by_id[channel.client_id]
        began_s = sent_s = message.entered_s - self.started_s
        attempt = 0
        if glance.type in ("task", "update"):
            if glance.task_id is None:
                return None
            number = glance.task_id
            attempt, began_s = client.count_attempt(number, glance.type, sent_s)
        else:
            number = client.message_counts[message.direction, glance.type]
            client.message_counts[message.direction, glance.type] += 1
        if not self.link.toxics:
            return None
        return InFlightMessage(
            client_id=channel.client_id,
            direction=message.direction,
            type=cast(MessageType, glance.type),
            number=number,
            sent_s=sent_s,
            due_s=sent_s,
            began_s=began_s,
            size_bytes=message.size_bytes,
            header_bytes=len(message.header),
            version=glance.version if glance.type == "task" else None,
            attempt=attempt,
        )

    def _queue_flight(self, channel: _Channel, flight: InFlightMessage, message: Forward) -> None:
        # Not simply started_s + due_s, which may differ from at_s in the last bit without any delay.
        at_s = message.entered_s
        due_s = at_s if flight.due_s <= flight.sent_s else max(at_s, self.started_s + flight.due_s)
        if flight.cuts:
            self._push(channel, due_s, Cut(channel.connection, flight.client_id, flight.down_s))
            return
        if flight.declined:
            error = codec.encode(Error(reason=Reason.UNAVAILABLE, task_id=flight.number))
            self._push(channel, due_s, Forward(channel.connection, Direction.UP, error, (), at_s, due_s))
            return
        header, cargo = message.header, message.cargo
        if flight.damage:
            header, cargo = damaged(header, cargo, flight.damage)
        delayed = replace(message, header=header, cargo=cargo, due_s=due_s)
        if flight.in_order:
            self._queue_in_order(channel, delayed)
        else:
            self._push(channel, due_s, delayed)

    def _queue_in_order(self, channel: _Channel, message: Forward) -> None:
        """Queue a message behind earlier ones, also those that bypass the link."""
        due_s = max(message.due_s, channel.last_s.get(message.direction, message.due_s))
        channel.last_s[message.direction] = due_s
        self._push(channel, due_s, message)

    def _push(self, channel: _Channel, due_s: float, output: Forward | Cut) -> None:
        channel.queued[self._sequence] = output
        heappush(self._queue, (due_s, self._sequence, channel))
        self._sequence += 1
        self.in_flight_messages += 1
        self.in_flight_bytes += output.size_bytes

    def _uncount(self, output: Forward | Cut) -> None:
        self.in_flight_messages -= 1
        self.in_flight_bytes -= output.size_bytes

    # --- ends of connections ---

    def _cut(self, channel: _Channel, until_s: float) -> None:
        assert channel.client_id is not None
        self._by_id[channel.client_id].down_until_s = until_s
        self._lose_all(channel)
        channel.is_cut = True

    def _close(self, channel: _Channel) -> None:
        self.closed(channel.connection)
        self._at_once.append(Close(channel.connection))

    def _close_idle(self, at_s: float) -> None:
        """Close connections that client and server have given up."""
        while self._channels:
            channel = next(iter(self._channels.values()))
            if channel.heard_s + IDLE_LEASES * self._lease_s > at_s:
                break
            if channel.queued:
                channel.heard_s = at_s
                self._channels.move_to_end(channel.connection)
            else:
                self._close(channel)

    def _lose_all(self, channel: _Channel) -> None:
        """Drop the messages of a connection, and reset the link of its client."""
        for output in channel.queued.values():
            self._uncount(output)
        channel.queued.clear()
        if channel.client_id is not None and self._by_id[channel.client_id].channel is channel:
            self.link.forget_client(channel.client_id)
        if len(self._queue) > self.in_flight_messages + DROPPED_KEPT:
            self._queue = list(filter(_is_queued, self._queue))
            heapify(self._queue)


def _is_queued(entry: tuple[float, int, _Channel]) -> bool:
    _, sequence, channel = entry
    return sequence in channel.queued


def damaged(header: bytes, cargo: Cargo, bits: Sequence[int]) -> tuple[bytes, Cargo]:
    """A copy of a message with flipped bits. Frames without damage are not copied.

    bits: counted from the first bit of the header through all frames, the highest bit of a byte first.
    """
    frames: list[Any] = [header, *cargo]
    for bit in bits:
        index, offset = 0, bit // 8
        while offset >= len(frames[index]):
            offset -= len(frames[index])
            index += 1
        if not isinstance(frames[index], bytearray):
            frames[index] = bytearray(frames[index])
        frames[index][offset] ^= 0x80 >> bit % 8
    return bytes(frames[0]), frames[1:]
