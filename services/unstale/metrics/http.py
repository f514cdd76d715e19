"""Serves /metrics, /healthz, /readyz and further pages of a process. Read only."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app

from unstale.net.http import Application, HttpServer

_TEXT = (("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store"))
PING_S = 2.0  # a thread without an answer for so long is stuck


class HttpService:
    """Serves from threads of its own until closed.

    address: HOST:PORT; port 0 takes a free one, and `self.address` has it. key: setting of the address, for errors.
    healthy: whether the process responds; asked for each request. ready: whether it does its work.
    alarm: a problem that the operator must fix and a restart does not; /healthz and /readyz show it.
    """

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        *,
        key: str,
        healthy: Callable[[], bool],
        ready: Callable[[], bool],
        alarm: Callable[[], str | None] = lambda: None,
        pages: Mapping[str, Application] = MappingProxyType({}),  # by path
    ) -> None:
        routes: dict[str, Application] = {
            "/metrics": make_wsgi_app(registry),
            "/healthz": _check(lambda: None if healthy() else "stuck", alarm),
            "/readyz": _check(lambda: None if ready() else alarm() or "not yet", alarm),
            **pages,
        }
        *others, last = routes

        def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            page = routes.get(environ["PATH_INFO"])
            if page is not None:
                return page(environ, start_response)
            start_response("404 Not Found", [*_TEXT])
            return [f"there is {', '.join(others)} and {last}\n".encode()]

        self._server = HttpServer(address, application, key=key)
        self.address = self._server.address

    def close(self) -> None:
        self._server.close()


def _check(trouble: Callable[[], str | None], alarm: Callable[[], str | None]) -> Application:
    """Answers 503 with the trouble, or 200 with the alarm or `ok`."""

    def application(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        problem = trouble()
        start_response("200 OK" if problem is None else "503 Service Unavailable", [*_TEXT])
        # A list for each answer: wsgiref adds its length to it.
        return [f"{problem or alarm() or 'ok'}\n".encode()]

    return application
