"""A small HTTP server in threads of its own, for one WSGI application."""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from unstale.errors import UserError

CLOSE_S = 0.05  # how long closing may have to wait until the accepting thread looks up

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    timeout = 10  # seconds; a connection that asks nothing holds a thread and a file no longer

    def handle(self) -> None:
        """Nobody waits for an answer who hangs up early, or says nothing for too long."""
        with suppress(ConnectionError, TimeoutError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name is the base class's)
        """A scrape every few seconds is no news."""


class HttpServer:
    """Serves from threads of its own until closed.

    address: HOST:PORT; port 0 takes a free one. `self.address` is the one really taken. key: the key of the
    configuration that the address comes from, for the sentence of a UserError.
    """

    def __init__(self, address: str, application: Application, *, key: str) -> None:
        host, port = _host_and_port(address, key)
        try:
            self._server = make_server(host, port, application, server_class=_Server, handler_class=_Silent)
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
