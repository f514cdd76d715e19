"""The server's side of its gateway processes: starts them, passes messages, and starts one again that has ended."""

import errno
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from unstale.errors import UserError
from unstale.gateway.link import Link, LinkEndedError, mapped, shared_file
from unstale.gateway.port import NO_CONNECTIONS, Counts, Incoming, PortSettings
from unstale.gateway.process import INLINE_BYTES, Kind, packed
from unstale.gateway.transport import Delivery
from unstale.log_rate_limit import about_peer
from unstale.net import authorized_keys
from unstale.net.zap import REREAD_S, ZapAuthenticator
from unstale_client.net.clock import now_s
from unstale_client.net.sockets import BACKLOG

log = logging.getLogger("unstale.server")

PROGRAM = "unstale.gateway.process"
START_S = 60.0  # that a gateway may take until it is ready
MEMORY_BYTES = 64 * 2**20  # for the payloads that one gateway has received and the server has not
MESSAGES_OF_MEMORY = 4  # or as much as these need, if that is more
MEMORY_BYTES_MAX = 2**30
PAUSE_S, PAUSE_S_MAX = 0.1, 10.0  # before a gateway that ended at once is started again; twice as long each time
STEADY_S = 30.0  # of running, after which the pause is short again
CLIENTS_S = 1.0  # between two looks at which connections still speak for a client
PREFIX_BYTES = 4
ORPHANS_S = 2.0  # in which the gateways of a server that was killed end


@dataclass(eq=False, slots=True)
class _Published:
    """A frame in shared memory that all gateways can send."""

    number: int
    size_bytes: int
    __weakref__: Any = field(init=False)


@dataclass(eq=False, slots=True)
class _Gateway:
    """One gateway process, and the next one in its place. prefix: of the routing ids of the process that runs."""

    listening: socket.socket
    prefix: bytes = b""
    process: "subprocess.Popen[bytes] | None" = None
    link: Link | None = None
    memory: memoryview | None = None
    is_ready: bool = False
    started_s: float = 0.0
    pause_s: float = PAUSE_S
    due_s: float = 0.0  # time of the next start, while there is no process
    taken: int | None = None  # value of the ring that was read last and not reported
    clients: set[bytes] = field(default_factory=set)  # routing ids of which it knows that they speak for a client
    spoken_to: set[bytes] = field(default_factory=set)  # others that were sent something in this turn
    outgoing: list[Sequence[Any]] = field(default_factory=list)
    counts: Counts = NO_CONNECTIONS


class GatewayPort:
    """A `Port` of gateway processes. Made: all are bound, or raises UserError."""

    def __init__(
        self,
        settings: PortSettings,
        gateways: int,
        *,
        speaks: Callable[[bytes], bool],
        on_lost: Callable[[bytes, Delivery], None],
        on_cut: Callable[[bytes | None, str], None],
        on_refused: Callable[[str], None],
        on_ended: Callable[[], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """gateways: number of processes. on_lost: takes a routing id that
        cannot be sent to, and why. on_ended: a gateway has ended, and is started again. The others: as of `RouterPort`.
        """
        self._speaks = speaks
        self._on_lost, self._on_cut, self._on_refused, self._on_ended = on_lost, on_cut, on_refused, on_ended
        self.more_waits = False
        self._closed = False
        self._starts, self._numbers = count(1), count(1)
        self._published: weakref.WeakValueDictionary[int, _Published] = weakref.WeakValueDictionary()
        self._files: dict[int, int] = {}  # of the published frames, by number
        self._dropped: list[int] = []  # by the garbage collector, in any thread
        self._clients_s = 0.0
        self._keys = ZapAuthenticator(
            settings.keys, authorized_keys.SERVER, "server.keys", refused=on_refused, on_crash=on_crash
        )
        self.may_speak, self.owner_of = self._keys.may_speak, self._keys.owner_of
        limits = settings.limits
        self._settings = replace(
            settings,
            limits=replace(
                limits,
                strangers_max=-(-limits.strangers_max // gateways),
                unread_bytes_max=limits.unread_bytes_max // gateways,
            ),
            memory_bytes_max=settings.memory_bytes_max // (gateways + 1),
        )
        self._memory_bytes = max(MEMORY_BYTES, min(MESSAGES_OF_MEMORY * settings.update_bytes_max, MEMORY_BYTES_MAX))
        self._poll = select.poll()
        self._polled: dict[int, int] = {}
        listening = _listen(settings.address, gateways)
        self._gateways = [_Gateway(each) for each in listening]
        self._by_prefix: dict[bytes, _Gateway] = {}
        try:
            for gateway in self._gateways:
                self._start(gateway)
            self.address = self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        self._reads_keys = threading.Event()
        if settings.keys is not None:
            threading.Thread(target=self._read_keys, name="keys", daemon=True).start()

    # --- Port ---

    def wait(self, queue: int, timeout_ms: int | None) -> bool:
        """Wait for messages or for the queue. Whether the queue is ready."""
        at_s = now_s()
        dues_s = [gateway.due_s for gateway in self._gateways if gateway.process is None]
        if dues_s:
            due_ms = max(0, int((min(dues_s) - at_s) * 1000) + 1)
            timeout_ms = due_ms if timeout_ms is None else min(timeout_ms, due_ms)
        self._register(queue)
        ready = {descriptor for descriptor, _ in self._poll.poll(timeout_ms)}
        return queue in ready

    def wrap(self, frames: Sequence[memoryview]) -> list[Any]:
        """Frames in shared memory, published once for all messages; short ones as bytes."""
        return [bytes(frame) if len(frame) <= INLINE_BYTES else self._publish(frame) for frame in frames]

    def send(self, route: bytes, header: bytes, frames: Sequence[Any] = ()) -> Delivery:
        """Send a message with `turned`."""
        gateway = self._by_prefix.get(route[:PREFIX_BYTES])
        if gateway is None:
            return Delivery.GONE
        route = route[PREFIX_BYTES:]
        if route not in gateway.clients:
            gateway.spoken_to.add(route)
        pieces = [frame.number if isinstance(frame, _Published) else frame for frame in frames]
        if any(isinstance(frame, _Published) for frame in frames):
            gateway.outgoing.append((Kind.SEND, route, header, pieces, frames))  # keeps the frames published
        else:
            gateway.outgoing.append((Kind.SEND, route, header, pieces))
        return Delivery.SENT

    def receive(self) -> Iterator[Incoming]:
        """The messages that have arrived."""
        for gateway in self._gateways:
            if gateway.process is None:
                if now_s() >= gateway.due_s and not self._closed:
                    self._start(gateway)
                continue
            yield from self._receive(gateway)

    def turned(self) -> None:
        """Send what the turn has brought."""
        at_s = now_s()
        looks = at_s >= self._clients_s + CLIENTS_S
        if looks:
            self._clients_s = at_s
        for gateway in self._gateways:
            self._post_outgoing(gateway, looks=looks)
        while self._dropped:
            number = self._dropped.pop()
            for gateway in self._gateways:
                if gateway.link is not None:
                    gateway.link.post((Kind.DROP, number))
        for gateway in self._gateways:
            self._flush(gateway)

    def counts(self) -> Counts:
        """Of all gateways, as of a second ago. Any thread."""
        return Counts(*(sum(numbers) for numbers in zip(*(each.counts for each in self._gateways), strict=True)))

    @property
    def processes(self) -> list[int]:
        """Process ids. Any thread."""
        return [gateway.process.pid for gateway in self._gateways if gateway.process is not None]

    def close(self) -> None:
        """Let the gateways send what waits, for at most the linger time, and end them. Twice is allowed."""
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "_reads_keys"):
            self._reads_keys.set()
        for gateway in self._gateways:
            self._post_outgoing(gateway)
            if gateway.link is not None:
                gateway.link.post((Kind.CLOSE,))
        end_s = now_s() + self._settings.linger_s + START_S
        for gateway in self._gateways:
            self._end(gateway, end_s)
            gateway.listening.close()
        for number in list(self._files):
            self._drop(number)

    # --- processes ---

    def _start(self, gateway: _Gateway) -> None:
        """Start a process. Its READY follows."""
        ours, theirs = socket.socketpair()
        memory = shared_file(self._memory_bytes)
        listening = os.dup(gateway.listening.fileno())
        descriptors = (theirs.fileno(), memory, listening)
        try:
            gateway.process = subprocess.Popen(  # noqa: S603  (Python itself, and a module of ours)
                [sys.executable, "-m", PROGRAM, *map(str, descriptors)], pass_fds=descriptors, stdin=subprocess.DEVNULL
            )
            gateway.memory = mapped(memory, self._memory_bytes)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(memory)
            os.close(listening)
        gateway.link = Link(ours)
        gateway.started_s = now_s()
        gateway.is_ready = False
        gateway.prefix = next(self._starts).to_bytes(PREFIX_BYTES, "big")
        self._by_prefix[gateway.prefix] = gateway
        gateway.link.post((Kind.START, packed(self._settings), self._memory_bytes))
        for number, published in list(self._published.items()):
            gateway.link.post((Kind.PUBLISH, number, published.size_bytes), self._files[number])
        self._flush(gateway)

    def _wait_until_ready(self) -> str:
        """The address, when all gateways are bound. Raises UserError."""
        address, end_s = "", now_s() + START_S
        for gateway in self._gateways:
            while not gateway.is_ready:
                assert gateway.link is not None
                poll = select.poll()
                poll.register(gateway.link.fileno(), select.POLLIN)
                if not poll.poll(max(0, (end_s - now_s()) * 1000)):
                    raise UserError(f"a gateway (server.gateways) was not ready after {START_S:.0f} s; try again")
                try:
                    for kind, *content in gateway.link.receive():
                        if kind == Kind.READY:
                            gateway.is_ready, address = True, content[0]
                            break  # messages behind it wait for the run
                        if kind == Kind.REFUSED:
                            raise UserError(content[0])
                        self._handle(gateway, Kind(kind), content)
                except LinkEndedError:
                    raise UserError(f"a gateway (server.gateways) has ended as it started{_how(gateway)}") from None
        return address

    def _ended(self, gateway: _Gateway) -> None:
        """A process has ended, or is of no use: its connections are lost, and another one is started."""
        assert gateway.process is not None and gateway.link is not None
        gateway.process.kill()
        gateway.process.wait()
        if not self._closed:
            log.error("a gateway has ended%s; its clients connect again", _how(gateway))
        gateway.link.close()
        ran_s = now_s() - gateway.started_s
        gateway.pause_s = PAUSE_S if ran_s >= STEADY_S else min(2 * gateway.pause_s, PAUSE_S_MAX)
        gateway.due_s = now_s() + (0.0 if ran_s >= STEADY_S else gateway.pause_s)
        del self._by_prefix[gateway.prefix]
        lost = [gateway.prefix + route for route in gateway.clients]
        gateway.process, gateway.link, gateway.taken = None, None, None
        gateway.clients, gateway.counts = set(), NO_CONNECTIONS
        gateway.spoken_to.clear()
        gateway.outgoing.clear()
        for route in lost:
            self._on_lost(route, Delivery.GONE)
        self._on_ended()

    def _end(self, gateway: _Gateway, end_s: float) -> None:
        """End a process by `end_s`, after it has sent what waits."""
        if gateway.process is None or gateway.link is None:
            return
        try:
            while now_s() < end_s:
                gateway.link.flush()
                poll = select.poll()
                poll.register(gateway.link.fileno(), select.POLLIN | (select.POLLOUT if gateway.link.waits else 0))
                poll.poll(100)
                for _ in gateway.link.receive():
                    pass
        except LinkEndedError:
            pass
        gateway.link.close()
        try:
            gateway.process.wait(max(0.0, end_s - now_s()))
        except subprocess.TimeoutExpired:
            gateway.process.kill()
            gateway.process.wait()
        gateway.process, gateway.link = None, None

    # --- values ---

    def _receive(self, gateway: _Gateway) -> Iterator[Incoming]:
        assert gateway.link is not None
        try:
            for kind, *content in gateway.link.receive():
                if kind == Kind.MESSAGE:
                    yield self._message(gateway, *content)
                else:
                    self._handle(gateway, Kind(kind), content)
        except LinkEndedError:
            self._ended(gateway)

    def _message(
        self, gateway: _Gateway, route: bytes, header: bytes, frames: Sequence[Any], key: str | None, end: int | None
    ) -> Incoming:
        memory = gateway.memory
        assert memory is not None
        if end == -1:
            assert gateway.link is not None
            file = gateway.link.take_descriptor()
            try:
                memory = mapped(file, os.fstat(file).st_size)
            finally:
                os.close(file)
        elif end is not None:
            gateway.taken = end
        payload = [
            memoryview(frame) if isinstance(frame, bytes) else memory[frame[0] : frame[0] + frame[1]]
            for frame in frames
        ]
        return Incoming(gateway.prefix + route, header, payload, key)

    def _handle(self, gateway: _Gateway, kind: Kind, content: Sequence[Any]) -> None:
        if kind is Kind.LOST:
            route, is_full = content
            self._on_lost(gateway.prefix + route, Delivery.FULL if is_full else Delivery.GONE)
        elif kind is Kind.CUT:
            route, reason = content
            self._on_cut(None if route is None else gateway.prefix + route, reason)
        elif kind is Kind.HANDSHAKE_REFUSED:
            self._on_refused(content[0])
        elif kind is Kind.COUNTS:
            gateway.counts = Counts(*content)
        elif kind is Kind.LOG:
            level, name, text, peer = content
            logging.getLogger(name).log(level, "%s", text, extra=None if peer is None else about_peer(peer))
        elif kind is Kind.READY:
            gateway.is_ready = True
            log.info("a gateway is ready again at %s", content[0])
        elif kind is Kind.REFUSED:
            log.error("a gateway cannot be started: %s", content[0])
        else:
            raise AssertionError(kind)

    def _post_outgoing(self, gateway: _Gateway, *, looks: bool = False) -> None:
        """Pass on what the turn sends, and which messages it has read. looks: at all connections."""
        if gateway.link is None:
            return
        self._tell_clients(gateway, all_of_them=looks)
        for _kind, *content in gateway.outgoing:
            gateway.link.post((Kind.SEND, *content[:3]))
        gateway.outgoing.clear()
        if gateway.taken is not None:
            gateway.link.post((Kind.TAKEN, gateway.taken))
            gateway.taken = None

    def _tell_clients(self, gateway: _Gateway, *, all_of_them: bool) -> None:
        """Tell which connections speak for a client from now on, before they are sent anything."""
        assert gateway.link is not None
        added = [route for route in gateway.spoken_to if self._speaks(gateway.prefix + route)]
        gateway.spoken_to.clear()
        removed = (
            [route for route in gateway.clients if not self._speaks(gateway.prefix + route)] if all_of_them else []
        )
        if added or removed:
            gateway.clients.update(added)
            gateway.clients.difference_update(removed)
            gateway.link.post((Kind.CLIENTS, added, removed))

    def _flush(self, gateway: _Gateway) -> None:
        if gateway.link is None:
            return
        try:
            gateway.link.flush()
        except LinkEndedError:
            self._ended(gateway)

    def _publish(self, frame: memoryview) -> _Published:
        size_bytes = len(frame)
        file = shared_file(size_bytes)
        mapped(file, size_bytes)[:] = frame.cast("B")
        published = _Published(next(self._numbers), size_bytes)
        self._files[published.number] = file
        self._published[published.number] = published
        weakref.finalize(published, self._drop, published.number)
        for gateway in self._gateways:
            if gateway.link is not None:
                gateway.link.post((Kind.PUBLISH, published.number, size_bytes), file)
        return published

    def _drop(self, number: int) -> None:
        """Nothing sends a published frame any more. Any thread."""
        file = self._files.pop(number, None)
        if file is not None:
            os.close(file)
            self._dropped.append(number)

    def _register(self, queue: int) -> None:
        wanted = {queue: select.POLLIN}
        for gateway in self._gateways:
            if gateway.link is not None:
                wanted[gateway.link.fileno()] = select.POLLIN | (select.POLLOUT if gateway.link.waits else 0)
        if wanted == self._polled:
            return
        for descriptor in self._polled.keys() - wanted.keys():
            self._poll.unregister(descriptor)
        for descriptor, events in wanted.items():
            self._poll.register(descriptor, events)
        self._polled = wanted

    def _read_keys(self) -> None:
        while not self._reads_keys.wait(REREAD_S):
            self._keys.refresh()


def _how(gateway: _Gateway) -> str:
    """How a process has ended, for people."""
    assert gateway.process is not None
    try:
        code = gateway.process.wait(1.0)
    except subprocess.TimeoutExpired:
        return ""
    if code >= 0:
        return f" with exit code {code}"
    return f" by {signal.Signals(-code).name}"


def _listen(address: str, sockets: int) -> list[socket.socket]:
    """Listening sockets of one address, among which the system shares out the connections. Raises UserError."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    host = host.strip("[]")
    listening: list[socket.socket] = []
    try:
        family, _, _, _, where = socket.getaddrinfo(
            None if host == "*" else host,
            0 if port == "*" else int(port),
            type=socket.SOCK_STREAM,
            family=socket.AF_INET if host == "*" else socket.AF_UNSPEC,
            flags=socket.AI_PASSIVE,
        )[0]
        for _ in range(sockets):
            one = socket.socket(family, socket.SOCK_STREAM)
            listening.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sockets > 1:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            _bind(one, (where[0], listening[0].getsockname()[1] if len(listening) > 1 else where[1]))
            one.listen(BACKLOG)
    except (OSError, ValueError) as error:
        for one in listening:
            one.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise UserError(
                f"server.address {address} is in use; stop the program that uses it, or choose another port"
            ) from None
        why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else "not an address"
        raise UserError(
            f"server.address {address!r} cannot be bound ({why}); expected tcp://HOST:PORT of this machine"
        ) from None
    return listening


def _bind(one: socket.socket, where: tuple[str, int]) -> None:
    """Bind, when the gateways of a server that was killed have ended. Raises OSError."""
    end_s = now_s() + ORPHANS_S
    while True:
        try:
            one.bind(where)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or now_s() >= end_s:
                raise
            time.sleep(0.05)
        else:
            return
