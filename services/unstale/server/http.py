"""What the server says over HTTP: /metrics, /healthz, /readyz. Read only."""

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app

from unstale.net.http import HttpServer

_TEXT = (("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store"))


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

        self._server = HttpServer(address, application, key="server.http_address")
        self.address = self._server.address

    def close(self) -> None:
        self._server.close()
