"""The injector process: parts put together, threads started and ended.

main thread: waits, tells the numbers, and takes signals. proxy: messages. relay, where it is needed: bytes.
http: control and scrapes.
"""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import zmq

from unstale.config import Settings
from unstale.config.scenario import client_info, conditions
from unstale.errors import UserError
from unstale.injector.api import ControlApi
from unstale.injector.calls import QueueItem, StopNow, run_in_proxy_thread
from unstale.injector.core import Core
from unstale.injector.endpoints import Front, ProxyBounds, Upstream
from unstale.injector.numbers import Numbers
from unstale.injector.proxy import Proxy
from unstale.injector.relay import Relay
from unstale.injector.toxic_collection import ToxicCollection
from unstale.net import files, keys, sockets
from unstale.net.clock import now_s
from unstale.net.connections import ConnectionLimits
from unstale.net.handshakes import Handshakes
from unstale.net.limiter import ConnectionLimiter
from unstale.net.memory import MemoryBound, bytes_max_by_default
from unstale.net.wakeable_queue import WakeableQueue
from unstale.net.zap import ZapAuthenticator
from unstale.toxics.disconnect import Disconnect
from unstale.toxics.link import Applied, ToxicLink
from unstale_proto import limits

INNER_ADDRESS = "tcp://127.0.0.1:*"  # where the relay finds the proxy
IO_THREADS = (
    2  # every byte comes in and goes out again, which on one thread would halve what a server's own can do
)
SPARE_CONNECTIONS = 64  # beside two a client, one of them left behind: strangers and processes that take over


class Injector:
    """One injector. Made: everything is checked and bound. `run`: it goes on until `stop`.

    settings: as resolved. Raises UserError for what the user can mend.
    """

    def __init__(self, settings: Settings) -> None:
        sockets.require_libzmq()
        own = settings.injector
        own.check_link()
        refused: Counter[str] = Counter()
        self._authenticator = authenticator = ZapAuthenticator(
            own.keys,
            keys.INJECTOR,
            "injector.keys",
            refused=lambda reason: refused.update((reason,)),
            on_crash=lambda error: self._queue.post(error),
        )
        clients = client_info(settings)
        toxics = conditions(settings, of=clients).toxics
        relays = own.tcp or any(map(_needs_relay, toxics))
        connections_max = 2 * settings.clients + SPARE_CONNECTIONS
        files_each = 5 if relays else 3
        files.allow_connections(settings.clients, files_each=files_each)
        collection = ToxicCollection(toxics, client_info=clients, seed=settings.seed, relays=relays)
        started_s = now_s()
        self._queue: WakeableQueue[QueueItem] = WakeableQueue()
        self._error: BaseException | None = None
        self._end: Numbers | None = None
        self._done = threading.Event()
        self._control: ControlApi | None = None
        self._relay: Relay | None = None
        self._proxy: Proxy | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.IO_THREADS, IO_THREADS)
        self._context.set(zmq.MAX_SOCKETS, max(1023, connections_max + 16))
        times = {"heartbeat_s": settings.server.heartbeat_s, "linger_s": settings.server.linger_s}
        self._front = sockets.router(self._context, **times)
        core = Core(
            ToxicLink(collection.of_messages, settings.seed),
            clients=settings.clients,
            started_s=started_s,
            bytes_max=own.in_flight_bytes_max,
            may_speak=None if authenticator.identity is None else authenticator.may_speak,
        )
        self._limiter = ConnectionLimiter(
            ConnectionLimits(
                strangers_max=settings.clients + SPARE_CONNECTIONS,
                connections_max=files.connections_max() // files_each,
                hello_s=settings.server.hello_s,
                unread_bytes_max=settings.server.unread_bytes_max,
                messages_ahead=sockets.RECEIVE_QUEUE,
            ),
            is_client=lambda route: core.client_of(route) is not None,
            message_bytes_max=min(limits.PAYLOAD_BYTES_MAX, own.in_flight_bytes_max),
            memory=MemoryBound(settings.server.memory_bytes_max or bytes_max_by_default()),
            on_cut=lambda _route, _reason: None,
            on_failed=authenticator.on_handshake_failed,
            on_crash=self._queue.post,
        )
        dealer = partial(sockets.dealer, self._context, **times, identity=authenticator.identity)
        try:
            authenticator.start(self._context, self._front)
            self._limiter.watch(self._context, self._front)
            self.address = sockets.bind(
                self._front, INNER_ADDRESS if relays else own.address, key="injector.address"
            )
            if relays:
                self._relay = Relay(
                    own.address,
                    self.address,
                    seed=settings.seed,
                    started_s=started_s,
                    connections_max=connections_max,
                    on_crash=self._queue.post,
                )
                self._relay.change(collection.of_bytes)
                self.address = self._relay.address
            self._proxy = proxy = Proxy(
                Front(
                    socket=self._front, authenticator=authenticator, limiter=self._limiter, refused=refused
                ),
                Upstream(
                    address=own.upstream,
                    probe=_probe(dealer, own.upstream, authenticator.identity),
                    connect=partial(_connected, dealer, own.upstream),
                ),
                ProxyBounds(
                    connections_max=connections_max,
                    bytes_max=own.in_flight_bytes_max,
                    patience_s=own.patience_s,
                ),
                core=core,
                collection=collection,
                queue=self._queue,
                relay=self._relay,
                started_s=started_s,
            )
            self._thread = threading.Thread(target=self._turn, args=(proxy,), name="proxy", daemon=True)
            if own.http_address is not None:
                self._control = ControlApi(
                    own.http_address, proxy, partial(run_in_proxy_thread, self._queue), self._relay
                )
        except BaseException:
            self._close()
            raise
        self.http_address = None if self._control is None else self._control.address

    def run(
        self, on_numbers: Callable[[Numbers], None] = lambda _: None, every_s: float | None = None
    ) -> Numbers:
        """Pass messages on until `stop`, then tell how it ended. Raises what a thread died of.

        on_numbers: told every `every_s` seconds how things stand; None for never.
        """
        assert self._proxy is not None
        if self._relay is not None:
            self._relay.start()
        self._thread.start()
        while not self._done.wait(every_s):
            with suppress(TimeoutError):  # it ends just now
                on_numbers(run_in_proxy_thread(self._queue, self._proxy.numbers))
        self._thread.join()
        self._close()
        if self._error is not None:
            raise self._error
        assert self._end is not None
        return self._end

    def stop(self) -> None:
        """End now; what is held is lost. Any thread, signal handlers included."""
        self._queue.post(StopNow())

    def _turn(self, proxy: Proxy) -> None:
        try:
            self._end = proxy.run()
        except BaseException as error:  # noqa: BLE001  (raised by `run` in the main thread)
            self._error = error
        finally:
            self._done.set()

    def _close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._relay is not None:
            self._relay.close()
        if self._proxy is not None:
            self._proxy.close()
        self._limiter.close()
        self._authenticator.close()
        self._front.close()
        self._context.term()
        self._queue.close()


def _needs_relay(applied: Applied) -> bool:
    return applied.toxic.below_messages or isinstance(applied.toxic, Disconnect)


def _connected(dealer: Callable[[], zmq.Socket[bytes]], upstream: str) -> zmq.Socket[bytes]:
    """A new connection to the server, which need not be there yet."""
    socket = dealer()
    try:
        sockets.connect(socket, upstream, key="injector.upstream")
    except UserError:
        socket.close()
        raise
    return socket


def _probe(
    dealer: Callable[[], zmq.Socket[bytes]], upstream: str, identity: keys.Identity | None
) -> Handshakes:
    """A connection that finds out whether the server is there, and lets us in."""
    public = None if identity is None else identity.public
    probe = Handshakes(dealer(), upstream, public, ("injector.keys", "injector.keys"))
    try:
        sockets.connect(probe.socket, upstream, key="injector.upstream")
    except UserError:
        probe.close()
        probe.socket.close()
        raise
    return probe
