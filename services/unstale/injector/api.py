"""The HTTP interface of the injector: toxics, numbers, /metrics and /healthz.

Threads of the HTTP server prepare changes one after the other, so that messages do not wait for them. An invalid
request is answered with an error message and changes nothing. Every program that reaches the port can change toxics:
the default address is reachable from this machine only, and requests of web pages are refused.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from typing import Any, NoReturn

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

from unstale.errors import UserError
from unstale.injector.numbers import Scrape
from unstale.injector.proxy import Proxy
from unstale.injector.relay import Relay
from unstale.injector.toxic_collection import ToxicCollection, UnknownNameError
from unstale.net.http import HttpServer

log = logging.getLogger("unstale.injector")

BODY_BYTES_MAX = 64 * 1024
LENGTH_DIGITS_MAX = 18  # of Content-Length

Environ = Mapping[str, Any]  # of WSGI
Handler = Callable[[str, Any], Any]  # of the name of a toxic and the JSON of the request


class _RequestError(UserError):
    """An invalid request. allow: allowed methods, for status 405."""

    def __init__(self, status: HTTPStatus, message: str, allow: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.allow = allow


class ControlApi:
    """Serves from its own threads until closed.

    call: runs a function in the proxy's thread; raises TimeoutError if the thread does not answer.
    """

    def __init__(
        self, address: str, proxy: Proxy, call: Callable[[Callable[[], Any]], Any], relay: Relay | None
    ) -> None:
        self._proxy = proxy
        self._call = call
        self._relay = relay
        self._change_lock = threading.Lock()
        change = self._change
        self._routes: dict[str, dict[str, Handler]] = {
            "/toxics": {
                "GET": lambda _, __: proxy.collection.listed(),
                "POST": lambda _, entry: change(lambda toxics: toxics.add(entry)),
            },
            "/toxics/NAME": {
                "GET": lambda name, _: proxy.collection.describe(name),
                "PATCH": lambda name, changes: change(lambda toxics: toxics.change(name, changes), ends_delays=True),
                "DELETE": lambda name, _: change(lambda toxics: toxics.remove(name), ends_delays=True),
            },
            "/blackout": {"POST": lambda _, entry: change(lambda toxics: toxics.black_out(entry, proxy.scenario_s))},
            "/reset": {"POST": lambda _, __: change(ToxicCollection.reset, ends_delays=True)},
            "/state": {"GET": lambda _, __: asdict(call(proxy.numbers))},
            "/healthz": {"GET": self._check_health},
        }
        registry = CollectorRegistry()
        registry.register(Scrape(partial(call, proxy.numbers)))
        ProcessCollector(registry=registry)
        self._metrics = make_wsgi_app(registry)
        self._server = HttpServer(address, self._application, key="injector.http_address")
        self.address = self._server.address

    def close(self) -> None:
        self._server.close()

    # --- one request ---

    def _application(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")  # WSGI decodes it as latin-1
        headers = [("Content-Type", "application/json; charset=utf-8"), ("Cache-Control", "no-store")]
        try:
            if path == "/metrics":
                metrics: Iterable[bytes] = self._metrics(environ, start_response)
                return metrics
            status, data = self._answer(path, environ["REQUEST_METHOD"], environ)
        except ConnectionError:  # the client is gone
            raise
        except Exception as error:  # noqa: BLE001  (logged; it must not end the injector)
            status, message = _failure(error, f"{environ['REQUEST_METHOD']} {path!r}")
            data = {"error": message}
            if isinstance(error, _RequestError) and error.allow:
                headers.append(("Allow", error.allow))
        start_response(f"{status} {status.phrase}", headers)
        return [f"{json.dumps(data, ensure_ascii=False)}\n".encode()]

    def _answer(self, path: str, method: str, environ: Environ) -> tuple[HTTPStatus, Any]:
        if "HTTP_ORIGIN" in environ:  # a page in a browser of this machine can reach the port
            raise _RequestError(HTTPStatus.FORBIDDEN, "requests of web pages are refused; use another program")
        name = path.removeprefix("/toxics/") if path.startswith("/toxics/") else ""
        handlers = self._routes.get("/toxics/NAME" if name else path)
        if handlers is None:
            paths = ", ".join(self._routes)
            raise _RequestError(HTTPStatus.NOT_FOUND, f"there is no {path}, expected {paths} or /metrics")
        if method not in handlers:
            message = f"{path} takes no {method}, expected {' or '.join(handlers)}"
            raise _RequestError(HTTPStatus.METHOD_NOT_ALLOWED, message, ", ".join(handlers))
        is_new = method == "POST" and path != "/reset"
        body = _body(environ) if is_new or method == "PATCH" else None
        return HTTPStatus.CREATED if is_new else HTTPStatus.OK, handlers[method](name, body)

    def _check_health(self, _name: str, _body: None) -> str:
        self._call(lambda: None)
        if self._relay is not None:
            self._relay.check()
        return "ok"

    def _change(self, change: Callable[[ToxicCollection], str | None], *, ends_delays: bool = False) -> Any:
        """The changed toxic, which `change` names; None for all toxics. ends_delays: as in `Proxy.replace_toxics`."""
        with self._change_lock:
            collection = copy(self._proxy.collection)
            name = change(collection)
            self._call(partial(self._proxy.replace_toxics, collection, ends_delays=ends_delays))
        return collection.listed() if name is None else collection.describe(name)


def _failure(error: Exception, request: str) -> tuple[HTTPStatus, str]:
    match error:
        case _RequestError():
            return error.status, str(error)
        case UnknownNameError():
            return HTTPStatus.NOT_FOUND, str(error)
        case UserError():
            return HTTPStatus.BAD_REQUEST, str(error)
        case TimeoutError():
            return HTTPStatus.SERVICE_UNAVAILABLE, str(error)
    log.error("%s failed", request, exc_info=error)
    return HTTPStatus.INTERNAL_SERVER_ERROR, "the request failed; the injector's log has the reason"


def _body(environ: Environ) -> Any:
    """The JSON of a request."""
    length = environ.get("CONTENT_LENGTH") or "0"
    if not length.isdecimal() or length.strip("0") == "":
        raise _RequestError(HTTPStatus.BAD_REQUEST, "the request has no body, expected a JSON object")
    if len(length) > LENGTH_DIGITS_MAX:
        raise _RequestError(HTTPStatus.BAD_REQUEST, "Content-Length is not a number of bytes")
    if int(length) > BODY_BYTES_MAX:
        message = f"the body has {length} bytes, expected at most {BODY_BYTES_MAX}"
        raise _RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
    try:
        return json.loads(environ["wsgi.input"].read(int(length)), parse_constant=_refuse_constant)
    except TimeoutError:
        raise _RequestError(HTTPStatus.REQUEST_TIMEOUT, "the body did not arrive in time") from None
    except (ValueError, RecursionError):
        raise _RequestError(HTTPStatus.BAD_REQUEST, "the body is not JSON, expected a JSON object") from None


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
