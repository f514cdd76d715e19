"""A small HTTP server in threads of its own, for one WSGI application.

Whoever asks cannot make it hold more than a bounded number of connections, nor take for ever to say what it wants.
"""

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from typing_extensions import override

from unstale.errors import UserError

CLOSE_S = 0.05  # how long closing may have to wait until the accepting thread looks up
SAYS_NOTHING_S = 10  # a connection that asks nothing holds a thread and a file no longer
REQUEST_S = 30.0  # nor does one whose request comes byte by byte
CONNECTIONS_MAX = (
    64  # each has a thread; scrapes and checks are a few, and pages have a limit of their own below it
)
LEAVES_S = 1.0  # within so long the thread of a connection that was ended leaves its place
LOOPBACK = ("127.0.0.1", "::1")  # where a browser of this machine comes from

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class _Places:
    """The connections that are served, oldest first. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asking: dict[socket.socket, str] = {}  # the address of each whose request is not complete
        self._answered: dict[socket.socket, str] = {}

    def take(self, connection: socket.socket, address: str) -> None:
        with self._lock:
            self._asking[connection] = address

    def has_asked(self, connection: socket.socket) -> None:
        """The request of a connection is complete."""
        with self._lock:
            address = self._asking.pop(connection, None)
            if address is not None:
                self._answered[connection] = address

    def leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._asking.pop(connection, None)
            self._answered.pop(connection, None)

    def cut_one(self) -> bool:
        """End the oldest connection of the address that has most, of those that ask if there are any. Whether there was
        one to end."""
        with self._lock:
            served = self._asking or self._answered
            if not served:
                return False
            ((address, _),) = Counter(served.values()).most_common(1)
            connection = next(one for one, its in served.items() if its == address)
            del served[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        return True


class _Server(ThreadingMixIn, WSGIServer):
    """A newcomer takes the place of one that drips its request: a probe asks at once, and is answered."""

    daemon_threads = True

    def __init__(self, *told: Any, **named: Any) -> None:
        self._free = threading.Semaphore(CONNECTIONS_MAX)
        self.places = _Places()
        super().__init__(*told, **named)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        is_free = self._free.acquire(blocking=False)
        if not is_free and self.places.cut_one():
            is_free = self._free.acquire(timeout=LEAVES_S)
        if is_free:
            self.places.take(request, client_address[0])
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    @override
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.leave(request)
            self._free.release()


class _Silent(WSGIRequestHandler):
    timeout = SAYS_NOTHING_S

    @override
    def handle(self) -> None:
        """Nobody waits for an answer who hangs up early, or does not come to the end of a request."""
        deadline = threading.Timer(REQUEST_S, self._hear_no_more)
        deadline.daemon = True
        deadline.start()
        with suppress(ConnectionError, TimeoutError):
            super().handle()
        deadline.cancel()

    @override
    def parse_request(self) -> bool:
        """Whether the request is complete and well made."""
        is_complete = super().parse_request()
        assert isinstance(self.server, _Server)
        self.server.places.has_asked(self.connection)
        return is_complete

    def _hear_no_more(self) -> None:
        """What is read from now on is at its end; an answer goes on."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """A scrape every few seconds is no news."""


class HttpServer:
    """Serves from threads of its own until closed.

    address: HOST:PORT; port 0 takes a free one. `self.address` is the one really taken. key: the key of the
    configuration that the address comes from, for the sentence of a UserError.
    """

    def __init__(self, address: str, application: Application, *, key: str) -> None:
        host, port = _host_and_port(address, key)
        try:
            self._server = make_server(
                host, port, partial(_by_its_name, application), server_class=_Server, handler_class=_Silent
            )
        except OSError as error:
            raise UserError(
                f"{key} {address} cannot be used ({(error.strerror or str(error)).lower()}); "
                "stop what listens there, name another HOST:PORT, or null for none"
            ) from None
        self.address = f"{host}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(CLOSE_S,), name="http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _host_and_port(address: str, key: str) -> tuple[str, int]:
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{key} is {address!r}, expected HOST:PORT such as 127.0.0.1:9464, or null for none")
    return host.strip("[]"), int(port)


def _by_its_name(application: Application, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Not under a foreign name: whoever owns one can let it point at this machine, and then a page of his in a browser
    here would be of one origin with ours (DNS rebinding). From elsewhere any name may be ours."""
    host = environ.get("HTTP_HOST", "")
    if environ["REMOTE_ADDR"] not in LOOPBACK or _is_of_this_machine(host):
        return application(environ, start_response)
    start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
    told = f"Host is {host!r}, expected localhost or an address; let a proxy on this machine pass on one of them\n"
    return [told.encode()]


def _is_of_this_machine(host: str) -> bool:
    """Of a header Host. An address is nobody's name, and programs may leave it out."""
    name = re.sub(r":\d+$", "", host).strip("[]").lower()
    try:
        return name in ("", "localhost") or bool(ip_address(name))
    except ValueError:
        return False
