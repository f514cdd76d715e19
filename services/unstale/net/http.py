"""A small HTTP server in threads of its own, for one WSGI application, with bounded connections and request times."""

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
from unstale_client.net.keys import cause

CLOSE_S = 0.05  # poll interval of the accepting thread, which closing waits for
SAYS_NOTHING_S = 10  # idle time after which a connection is closed
REQUEST_S = 30.0  # time for a whole request, which may come byte by byte
CONNECTIONS_MAX = 64  # each has a thread; scrapes and checks are a few, and pages have a lower limit of their own
LEAVES_S = 1.0  # time in which the thread of a connection that was cut ends
LOOPBACK = ("127.0.0.1", "::1")

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class _Connections:
    """The open connections with their addresses, oldest first. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._incomplete: dict[socket.socket, str] = {}  # whose request is not complete
        self._complete: dict[socket.socket, str] = {}

    def add(self, connection: socket.socket, address: str) -> None:
        with self._lock:
            self._incomplete[connection] = address

    def set_complete(self, connection: socket.socket) -> None:
        with self._lock:
            address = self._incomplete.pop(connection, None)
            if address is not None:
                self._complete[connection] = address

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._incomplete.pop(connection, None)
            self._complete.pop(connection, None)

    def cut_one(self) -> bool:
        """Cut the oldest connection of the address with the most, if possible one with an incomplete request. Returns
        whether there was one.
        """
        with self._lock:
            candidates = self._incomplete or self._complete
            if not candidates:
                return False
            ((most_common, _),) = Counter(candidates.values()).most_common(1)
            connection = next(key for key, address in candidates.items() if address == most_common)
            del candidates[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        return True


class _Server(ThreadingMixIn, WSGIServer):
    """A new connection replaces a slow one, so that a probe, which asks at once, gets an answer."""

    daemon_threads = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._free = threading.Semaphore(CONNECTIONS_MAX)
        self.connections = _Connections()
        super().__init__(*args, **kwargs)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        is_free = self._free.acquire(blocking=False)
        if not is_free and self.connections.cut_one():
            is_free = self._free.acquire(timeout=LEAVES_S)
        if is_free:
            self.connections.add(request, client_address[0])
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    @override
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.remove(request)
            self._free.release()


class _Handler(WSGIRequestHandler):
    timeout = SAYS_NOTHING_S

    @override
    def handle(self) -> None:
        deadline = threading.Timer(REQUEST_S, self._stop_reading)
        deadline.daemon = True
        deadline.start()
        with suppress(ConnectionError, TimeoutError):  # nobody waits for the answer
            super().handle()
        deadline.cancel()

    @override
    def parse_request(self) -> bool:
        is_valid = super().parse_request()
        assert isinstance(self.server, _Server)
        self.server.connections.set_complete(self.connection)
        return is_valid

    def _stop_reading(self) -> None:
        """Reading finds the end from now on; an answer continues."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: a scrape comes every few seconds."""


class HttpServer:
    """Serves until `close`.

    Args:
        address: HOST:PORT; port 0 takes a free one, which the attribute `address` then holds.
        key: configuration key of the address.
    """

    def __init__(self, address: str, application: Application, *, key: str) -> None:
        host, port = _host_and_port(address, key)
        try:
            self._server = make_server(
                host, port, partial(_checked_host, application), server_class=_Server, handler_class=_Handler
            )
        except OSError as error:
            raise UserError(
                f"{key} {address} cannot be used ({cause(error)}); "
                "stop the program that uses it, choose another HOST:PORT, or null for none"
            ) from None
        self.address = f"{host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(CLOSE_S,), name="http", daemon=True)
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


def _checked_host(application: Application, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Refuses foreign host names from loopback: their owner could point one at this machine, and a page of that origin
    in a browser here would have access (DNS rebinding). From elsewhere any name may be that of this machine.
    """
    host = environ.get("HTTP_HOST", "")
    if environ["REMOTE_ADDR"] not in LOOPBACK or _is_local(host):
        return application(environ, start_response)
    start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
    text = f"Host is {host!r}, expected localhost or an address; let a proxy on this machine set one of them\n"
    return [text.encode()]


def _is_local(host: str) -> bool:
    """Whether a Host header is localhost, an address, or absent, as in some programs."""
    name = re.sub(r":\d+$", "", host).strip("[]").lower()
    try:
        return name in ("", "localhost") or bool(ip_address(name))
    except ValueError:
        return False
