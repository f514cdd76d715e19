"""The server's gateway processes as one port: starts them, and starts one again that has ended."""

import logging
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from unstale.errors import UserError
from unstale.gateway.child import Child
from unstale.gateway.link import LinkEndedError, mapped, shared_file
from unstale.gateway.listening import listen
from unstale.gateway.port import NO_CONNECTIONS, Counts, Incoming, PortSettings
from unstale.gateway.process import INLINE_BYTES, Kind
from unstale.gateway.transport import Delivery
from unstale.log_rate_limit import about_peer
from unstale.net import authorized_keys
from unstale.net.zap import REREAD_S, ZapAuthenticator
from unstale_client.net.clock import now_s

log = logging.getLogger("unstale.server")

START_S = 60.0  # that a gateway may take until it is ready
MEMORY_BYTES = 64 * 2**20  # for the payloads that one gateway has received and the server has not: 16 chunks
PAUSE_S, PAUSE_S_MAX = 0.1, 10.0  # before a gateway that ended at once is started again; twice as long each time
STEADY_S = 30.0  # of running, after which it is started again without a pause
CLIENTS_S = 1.0  # between two looks at which connections still speak for a client
PREFIX_BYTES = 4


@dataclass(eq=False, slots=True)
class _Published:
    """A frame in shared memory that all gateways can send."""

    number: int
    size_bytes: int
    __weakref__: Any = field(init=False)


@dataclass(eq=False, slots=True)
class _Slot:
    """Where one gateway runs, and the next one when it has ended. due_s: time of the next start, without a child."""

    listening: socket.socket
    child: Child | None = None
    pause_s: float = PAUSE_S
    due_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """What a server does about its gateways. All but on_crash are called in the thread of the port.

    speaks: whether a routing id speaks for a client now. on_lost: takes a routing id that cannot be sent to, and why.
    on_cut, on_refused, on_crash: as of `RouterPort`. on_ended: a gateway has ended, and is started again.
    """

    speaks: Callable[[bytes], bool]
    on_lost: Callable[[bytes, Delivery], None]
    on_cut: Callable[[bytes | None, str], None]
    on_refused: Callable[[str], None]
    on_ended: Callable[[], None]
    on_crash: Callable[[BaseException], None]


class GatewayPort:
    """A `Port` of gateway processes. Made: all are bound, or raises UserError."""

    def __init__(self, settings: PortSettings, gateways: int, callbacks: Callbacks) -> None:
        """gateways: number of processes."""
        if not hasattr(socket, "send_fds"):
            raise UserError(f"server.gateways is {gateways}, but this system shares no sockets; expected 0")
        self._callbacks = callbacks
        self._closed = threading.Event()
        self._starts, self._numbers = count(1), count(1)
        self._published: weakref.WeakValueDictionary[int, _Published] = weakref.WeakValueDictionary()
        self._files: dict[int, int] = {}  # of the published frames, by number
        self._dropped: list[int] = []  # by the garbage collector, in any thread
        self._looked_s = 0.0
        self._keys = ZapAuthenticator(
            settings.keys,
            authorized_keys.SERVER,
            "server.keys",
            refused=callbacks.on_refused,
            on_crash=callbacks.on_crash,
        )
        self.owner_of = self._keys.owner_of
        self._settings = _share(settings, gateways)
        self._poll = select.poll()
        self._polled: dict[int, int] = {}
        self._slots = [_Slot(each) for each in listen(settings.address, gateways)]
        self._by_prefix: dict[bytes, Child] = {}
        try:
            for slot in self._slots:
                self._start(slot)
            self.address = self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        if settings.keys is not None:
            threading.Thread(target=self._read_keys, name="keys", daemon=True).start()

    # --- Port ---

    def wait(self, queue: int, timeout_ms: int | None) -> bool:
        """Wait for messages, for the descriptor of a queue, or for so long. Whether the queue is readable."""
        dues_s = [slot.due_s for slot in self._slots if slot.child is None]
        if dues_s:
            due_ms = max(0, int((min(dues_s) - now_s()) * 1000) + 1)
            timeout_ms = due_ms if timeout_ms is None else min(timeout_ms, due_ms)
        self._register(queue)
        return queue in {descriptor for descriptor, _ in self._poll.poll(timeout_ms)}

    def wrap(self, frames: Sequence[memoryview]) -> list[Any]:
        """Frames in shared memory, published once for all messages; short ones as bytes."""
        return [bytes(frame) if len(frame) <= INLINE_BYTES else self._publish(frame) for frame in frames]

    def send(self, route: bytes, header: bytes, frames: Sequence[Any] = ()) -> Delivery:
        """Send a message at the end of the turn."""
        child = self._by_prefix.get(route[:PREFIX_BYTES])
        if child is None:
            return Delivery.GONE
        child.send(route, header, [one.number if isinstance(one, _Published) else one for one in frames], frames)
        return Delivery.SENT

    def receive(self) -> Iterator[Incoming]:
        """The messages that have come. Starts gateways that have ended."""
        for slot in self._slots:
            if slot.child is not None:
                yield from self._receive(slot, slot.child)
            elif now_s() >= slot.due_s:
                self._start_again(slot)

    @property
    def more_waits(self) -> bool:
        """Whether messages may wait that were not received here, wherever they are. While a gateway starts, too."""
        at_s = now_s()
        return any(slot.child is None or slot.child.may_have_messages(at_s) for slot in self._slots)

    def turned(self) -> None:
        """Send what the turn has brought."""
        at_s = now_s()
        looks = at_s >= self._looked_s + CLIENTS_S
        if looks:
            self._looked_s = at_s
        for child in self._children():
            child.post(self._callbacks.speaks, looks=looks)
        while self._dropped:
            number = self._dropped.pop()
            for child in self._children():
                child.link.post((Kind.DROP, number))
        for slot in self._slots:
            self._flush(slot)

    def may_speak(self, key: str | None, client_id: int) -> bool:
        """Whether a key owns a client now, which a gateway may know before this process. Any thread."""
        if self._keys.may_speak(key, client_id):
            return True
        self._keys.refresh(only_new=True)
        return self._keys.may_speak(key, client_id)

    def counts(self) -> Counts:
        """Of all gateways, as of a second ago. Any thread."""
        counts = [child.counts for child in self._children()] or [NO_CONNECTIONS]
        return Counts(*map(sum, zip(*counts, strict=True)))

    def close(self) -> None:
        """Let the gateways send what waits, for at most the linger time, and end them. Twice is allowed."""
        if self._closed.is_set():
            return
        self._closed.set()
        for child in self._children():
            child.post(self._callbacks.speaks)
        end_s = now_s() + self._settings.linger_s + START_S
        for slot in self._slots:
            slot.listening.close()
            if slot.child is not None:
                slot.child.end(end_s)
                slot.child = None
        for number in list(self._files):
            self._drop(number)

    # --- processes ---

    def _children(self) -> list[Child]:
        return [slot.child for slot in self._slots if slot.child is not None]

    def _start(self, slot: _Slot) -> None:
        """Start a gateway. Its READY follows."""
        prefix = next(self._starts).to_bytes(PREFIX_BYTES, "big")
        slot.child = child = Child(prefix, self._settings, MEMORY_BYTES, slot.listening)
        self._by_prefix[prefix] = child
        for number, published in list(self._published.items()):
            child.link.post((Kind.PUBLISH, number, published.size_bytes), self._files[number])
        self._flush(slot)

    def _start_again(self, slot: _Slot) -> None:
        try:
            self._start(slot)
        except OSError as error:  # no process or no memory now
            slot.pause_s = min(2 * slot.pause_s, PAUSE_S_MAX)
            slot.due_s = now_s() + slot.pause_s
            log.error("a gateway cannot be started (%s); trying again in %.1f s", error.strerror, slot.pause_s)

    def _wait_until_ready(self) -> str:
        """The address, when all gateways are bound. Raises UserError."""
        address, end_s = "", now_s() + START_S
        for child in self._children():
            poll = select.poll()
            poll.register(child.link.fileno(), select.POLLIN)
            while not child.is_ready:
                if not poll.poll(max(0, (end_s - now_s()) * 1000)):
                    raise UserError(f"a gateway (server.gateways) was not ready after {START_S:.0f} s; try again")
                try:
                    address = self._ready(child) or address
                except LinkEndedError:
                    raise UserError(f"a gateway (server.gateways) ended as it started{child.kill()}") from None
        return address

    def _ready(self, child: Child) -> str | None:
        """The address of a gateway that is ready now. Raises UserError and LinkEndedError."""
        for kind, *content in child.link.receive():
            if kind == Kind.READY:
                child.is_ready = True
                return str(content[0])  # messages behind it wait for the run
            if kind == Kind.REFUSED:
                raise UserError(content[0])
            self._handle(child, Kind(kind), content)
        return None

    def _ended(self, slot: _Slot, child: Child) -> None:
        """A gateway has ended, or is of no use: its connections are lost, and another one is started soon."""
        log.error("a gateway has ended%s; its clients connect again", child.kill())
        ran_s = now_s() - child.started_s
        slot.pause_s = PAUSE_S if ran_s >= STEADY_S else min(2 * slot.pause_s, PAUSE_S_MAX)
        slot.due_s = now_s() + (0.0 if ran_s >= STEADY_S else slot.pause_s)
        slot.child = None
        del self._by_prefix[child.prefix]
        for route in child.clients:
            self._callbacks.on_lost(child.prefix + route, Delivery.GONE)
        self._callbacks.on_ended()

    # --- values ---

    def _receive(self, slot: _Slot, child: Child) -> Iterator[Incoming]:
        try:
            for value in child.values():
                if isinstance(value, Incoming):
                    yield value
                else:
                    self._handle(child, Kind(value[0]), value[1:])
        except LinkEndedError:
            self._ended(slot, child)

    def _handle(self, child: Child, kind: Kind, content: Sequence[Any]) -> None:
        if kind is Kind.LOST:
            route, is_full = content
            self._callbacks.on_lost(child.prefix + route, Delivery.FULL if is_full else Delivery.GONE)
        elif kind is Kind.CUT:
            route, reason = content
            self._callbacks.on_cut(None if route is None else child.prefix + route, reason)
        elif kind is Kind.HANDSHAKE_REFUSED:
            self._callbacks.on_refused(content[0])
        elif kind is Kind.LOG:
            level, name, text, peer = content
            logging.getLogger(name).log(level, "%s", text, extra=None if peer is None else about_peer(peer))
        elif kind is Kind.REFUSED:
            log.error("a gateway cannot be started: %s", content[0])
        else:
            child.note(kind, content)

    def _flush(self, slot: _Slot) -> None:
        if slot.child is not None:
            try:
                slot.child.link.flush()
            except LinkEndedError:
                self._ended(slot, slot.child)

    def _publish(self, frame: memoryview) -> _Published:
        size_bytes = len(frame)
        file = shared_file(size_bytes)
        mapped(file, size_bytes)[:] = frame.cast("B")
        published = _Published(next(self._numbers), size_bytes)
        self._files[published.number] = file
        self._published[published.number] = published
        weakref.finalize(published, self._drop, published.number)
        for child in self._children():
            child.link.post((Kind.PUBLISH, published.number, size_bytes), file)
        return published

    def _drop(self, number: int) -> None:
        """Nothing sends a published frame any more. Any thread."""
        file = self._files.pop(number, None)
        if file is not None:
            os.close(file)
            self._dropped.append(number)

    def _register(self, queue: int) -> None:
        events = {queue: select.POLLIN}
        for child in self._children():
            events[child.link.fileno()] = select.POLLIN | (select.POLLOUT if child.link.waits else 0)
        if events == self._polled:
            return
        for descriptor in self._polled.keys() - events.keys():
            self._poll.unregister(descriptor)
        for descriptor, its_events in events.items():
            self._poll.register(descriptor, its_events)
        self._polled = events

    def _read_keys(self) -> None:
        while not self._closed.wait(REREAD_S):
            self._keys.refresh()


def _share(settings: PortSettings, gateways: int) -> PortSettings:
    """The settings of each of several gateways: bounds of connections are divided, that of memory is common."""
    limits = settings.limits
    return replace(
        settings,
        limits=replace(
            limits,
            strangers_max=-(-limits.strangers_max // gateways),
            unread_bytes_max=limits.unread_bytes_max // gateways,
        ),
        gateways=gateways,
    )
