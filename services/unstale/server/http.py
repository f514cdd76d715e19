"""What the server says over HTTP: /metrics, /healthz, /readyz. Read only."""

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from unstale.errors import UserError

CLOSE_S = 0.05  # how long closing may have to wait until the accepting thread looks up

_TEXT = (("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store"))


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    timeout = 10  # seconds; a connection that asks nothing holds a thread and a file no longer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name is the base class's)
        """A scrape every few seconds is no news."""


class HttpService:
    """Serves from threads of its own until closed.

    healthy: whether the server still turns; asked anew for each request. ready: whether it takes clients.
    address: HOST:PORT; port 0 takes a free one. `self.address` is the one really taken.
    """

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        *,
        healthy: Callable[[], bool],
        ready: Callable[[], bool],
    ) -> None:
        host, port = _host_and_port(address)
        metrics = make_wsgi_app(registry)
        checks = {"/healthz": healthy, "/readyz": ready}

        def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            path = environ["PATH_INFO"]
            if path == "/metrics":
                answer: Iterable[bytes] = metrics(environ, start_response)
                return answer
            # Each answer has a list of its own, because wsgiref adds its length to it.
            if path in checks:
                good = checks[path]()
                start_response("200 OK" if good else "503 Service Unavailable", [*_TEXT])
                return [b"ok\n" if good else b"not yet\n" if path == "/readyz" else b"stuck\n"]
            start_response("404 Not Found", [*_TEXT])
            return [b"there is /metrics, /healthz and /readyz\n"]

        try:
            self._server = make_server(host, port, application, server_class=_Server, handler_class=_Silent)
        except OSError as error:
            raise UserError(
                f"server.http_address {address} cannot be used ({(error.strerror or str(error)).lower()}); "
                "stop what listens there, name another HOST:PORT, or 'off'"
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


def _host_and_port(address: str) -> tuple[str, int]:
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise UserError(
            f"server.http_address is {address!r}, expected HOST:PORT such as 127.0.0.1:9464, or 'off'"
        )
    return host.strip("[]"), int(port)
