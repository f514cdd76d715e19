"""The injector process: its parts and threads.

main thread: waits, prints numbers, receives signals. proxy: messages. relay: bytes, if a toxic needs it. http: control
and scrapes.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import NoReturn

import zmq

from unstale.config import Settings
from unstale.config.scenario import client_info, conditions
from unstale.injector.api import ControlApi
from unstale.injector.calls import Call, CallQueue, run_in_thread
from unstale.injector.core import Core
from unstale.injector.numbers import Numbers
from unstale.injector.proxy import Proxy
from unstale.injector.relay import Relay
from unstale.injector.toxic_collection import ToxicCollection, needs_relay
from unstale.injector.upstream import Upstream
from unstale.net import authorized_keys
from unstale.net.connections import ConnectionLimits
from unstale.net.limiter import ConnectionLimiter
from unstale.net.memory import MemoryBound, bytes_max_by_default
from unstale.net.zap import ZapAuthenticator
from unstale.toxics.link import ToxicLink
from unstale_client.net import files, sockets
from unstale_client.net.clock import now_s
from unstale_proto import limits

INNER_ADDRESS = "tcp://127.0.0.1:*"  # of the proxy, for the relay
IO_THREADS = 2  # each byte is received and sent; one thread would halve the throughput
SPARE_CONNECTIONS = 64  # besides two for each client, for strangers and processes that take over


class Injector:
    """One injector, bound when made. Raises UserError for invalid settings."""

    def __init__(self, settings: Settings) -> None:
        sockets.require_libzmq()
        own = settings.injector
        own.check_link()
        refused: Counter[str] = Counter()
        self._authenticator = ZapAuthenticator(
            own.keys,
            authorized_keys.INJECTOR,
            "injector.keys",
            refused=lambda reason: refused.update((reason,)),
            on_crash=self._crash,
        )
        identity = self._authenticator.identity
        clients = client_info(settings)
        toxics = conditions(settings, of=clients).toxics
        relays = own.tcp or any(needs_relay(one.toxic) for one in toxics)
        connections_max = 2 * settings.clients + SPARE_CONNECTIONS
        files_each = 5 if relays else 3
        files.allow_connections(settings.clients, files_each=files_each)
        collection = ToxicCollection(toxics, client_info=clients, seed=settings.seed, relays=relays)
        started_s = now_s()
        self._queue = CallQueue()
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
            may_speak=None if identity is None else self._authenticator.may_speak,
        )
        self._limiter = self._make_limiter(settings, core, files_each)
        try:
            self._authenticator.start(self._context, self._front)
            self._limiter.watch(self._context, self._front)
            self.address = sockets.bind(self._front, INNER_ADDRESS if relays else own.address, key="injector.address")
            if relays:
                self._relay = self._start_relay(settings, started_s, connections_max)
                self._relay.change(collection.of_bytes)
                self.address = self._relay.address
            self._proxy = Proxy(
                front=self._front,
                authenticator=self._authenticator,
                limiter=self._limiter,
                refused=refused,
                upstream=Upstream(
                    address=own.upstream,
                    dealer=partial(sockets.dealer, self._context, **times, identity=identity),
                    public=None if identity is None else identity.public,
                    patience_s=own.patience_s,
                    started_s=started_s,
                ),
                core=core,
                collection=collection,
                queue=self._queue,
                relay=self._relay,
                connections_max=connections_max,
            )
            if own.http_address is not None:
                call = partial(run_in_thread, self._queue)
                self._control = ControlApi(own.http_address, self._proxy, call, self._relay)
        except BaseException:
            self._close()
            raise
        self.http_address = None if self._control is None else self._control.address

    def _start_relay(self, settings: Settings, started_s: float, connections_max: int) -> Relay:
        """Start the relay of TCP streams to the proxy, whose address is bound already."""
        return Relay(
            settings.injector.address,
            self.address,
            seed=settings.seed,
            started_s=started_s,
            connections_max=connections_max,
            on_crash=self._crash,
        )

    def run(self, on_numbers: Callable[[Numbers], None] = lambda _: None, every_s: float | None = None) -> Numbers:
        """Forward messages until `stop`. Raises the exception that ended a thread.

        on_numbers: called every `every_s` seconds; None for never.
        """
        assert self._proxy is not None
        if self._relay is not None:
            self._relay.start()
        running = Call(self._proxy.run)
        thread = threading.Thread(target=running, name="proxy", daemon=True)
        thread.start()
        while not wait([running.future], every_s).done:
            with suppress(TimeoutError):  # the thread is ending
                on_numbers(run_in_thread(self._queue, self._proxy.numbers))
        thread.join()
        self._close()
        end: Numbers = running.future.result()
        return end

    def stop(self) -> None:
        """End now; messages in flight are lost. Any thread, signal handlers included."""
        assert self._proxy is not None
        self._queue.post(self._proxy.stop)

    def _crash(self, error: BaseException) -> None:
        """End the proxy's thread with the exception of another thread."""

        def fail() -> NoReturn:
            raise error

        self._queue.post(fail)

    def _make_limiter(self, settings: Settings, core: Core, files_each: int) -> ConnectionLimiter:
        return ConnectionLimiter(
            ConnectionLimits(
                strangers_max=settings.clients + SPARE_CONNECTIONS,
                connections_max=files.connections_max() // files_each,
                hello_s=settings.server.hello_s,
                unread_bytes_max=settings.server.unread_bytes_max,
                messages_ahead=sockets.RECEIVE_QUEUE,
            ),
            is_client=lambda route: core.client_of(route) is not None,
            message_bytes_max=min(limits.PAYLOAD_BYTES_MAX, settings.injector.in_flight_bytes_max),
            memory=MemoryBound(settings.server.memory_bytes_max or bytes_max_by_default()),
            on_cut=lambda _route, _reason: None,
            on_failed=self._authenticator.on_handshake_failed,
            on_crash=self._crash,
        )

    def _close(self) -> None:
        for part in (self._control, self._relay, self._proxy, self._limiter, self._authenticator, self._front):
            if part is not None:
                part.close()
        self._context.term()
        self._queue.close()
