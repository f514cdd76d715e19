"""What the injector says and takes over HTTP: its toxics, a blackout now, its numbers, /metrics and /healthz.

Changes are worked out in the threads of HTTP, one after the other, so that messages do not wait for them.
A request that is not valid is answered with one sentence, and changes nothing. Whoever can reach the port can change
the toxics: it is for this machine unless the configuration says otherwise, and takes nothing from web pages.
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
from unstale.injector.numbers import Numbers, Scrape
from unstale.injector.proxy import Proxy
from unstale.injector.relay import Relay
from unstale.injector.toxic_collection import ToxicCollection, UnknownNameError
from unstale.net.http import HttpServer

log = logging.getLogger("unstale.injector")

BODY_BYTES_MAX = 64 * 1024  # a toxic is described in a few hundred bytes
LENGTH_DIGITS_MAX = 18  # of Content-Length

PATHS = "/toxics, /toxics/NAME, /blackout, /reset, /state, /metrics and /healthz"


class _RefusedError(Exception):
    """A request that is not carried out. status: says why, for programs. The text is a sentence for people."""

    def __init__(self, status: HTTPStatus, sentence: str, allow: str = "") -> None:
        super().__init__(sentence)
        self.status = status
        self.allow = allow


class ControlApi:
    """Serves from threads of its own until closed. address: HOST:PORT. ask: has something done in the proxy's thread;
    raises TimeoutError when that does not answer. relay: if there is one."""

    def __init__(
        self, address: str, proxy: Proxy, ask: Callable[[Callable[[], Any]], Any], relay: Relay | None
    ) -> None:
        self._proxy = proxy
        self._ask = ask
        self._relay = relay
        self._changing = threading.Lock()
        registry = CollectorRegistry()
        registry.register(Scrape(self._numbers_or_none))
        ProcessCollector(registry=registry)
        self._metrics = make_wsgi_app(registry)
        self._server = HttpServer(address, self._application, key="injector.http_address")
        self.address = self._server.address

    def close(self) -> None:
        self._server.close()

    # --- one request ---

    def _application(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")  # WSGI has it as latin-1
        try:
            if path == "/metrics":
                answer: Iterable[bytes] = self._metrics(environ, start_response)
                return answer
            status, said = self._answer(path, environ["REQUEST_METHOD"], environ)
            allow = ""
        except UnknownNameError as error:
            status, said, allow = HTTPStatus.NOT_FOUND, {"error": str(error)}, ""
        except UserError as error:
            status, said, allow = HTTPStatus.BAD_REQUEST, {"error": str(error)}, ""
        except TimeoutError as error:
            status, said, allow = HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)}, ""
        except _RefusedError as error:
            status, said, allow = error.status, {"error": str(error)}, error.allow
        except ConnectionError:  # whoever asked has gone
            raise
        except Exception:  # a mistake of ours, which is not to end the messages' way
            log.exception("%s %r could not be carried out", environ["REQUEST_METHOD"], path)
            sentence = "this could not be carried out; the injector's log says why"
            status, said, allow = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": sentence}, ""
        headers = [("Content-Type", "application/json; charset=utf-8"), ("Cache-Control", "no-store")]
        start_response(f"{status} {status.phrase}", [*headers, *([("Allow", allow)] if allow else [])])
        return [f"{json.dumps(said, ensure_ascii=False)}\n".encode()]

    def _answer(self, path: str, method: str, environ: Mapping[str, Any]) -> tuple[HTTPStatus, Any]:
        if "HTTP_ORIGIN" in environ:  # a page in a browser of this machine can reach the port
            raise _RefusedError(
                HTTPStatus.FORBIDDEN, "requests of web pages are not taken; use another program"
            )
        name = path.removeprefix("/toxics/")
        if path.startswith("/toxics/") and name:
            return self._on_one(name, method, environ)
        match path, method:
            case "/toxics", "GET":
                return HTTPStatus.OK, self._proxy.collection.listed()
            case "/toxics", "POST":
                entry = _body(environ)
                after, name = self._changed(lambda collection: collection.add(entry))
                return HTTPStatus.CREATED, after.found(name)
            case "/blackout", "POST":
                entry = _body(environ)
                after, name = self._changed(
                    lambda collection: collection.black_out(entry, self._proxy.scenario_s)
                )
                return HTTPStatus.CREATED, after.found(name)
            case "/reset", "POST":
                after, _ = self._changed(ToxicCollection.reset, lets_go=True)
                return HTTPStatus.OK, after.listed()
            case "/state", "GET":
                return HTTPStatus.OK, asdict(self._ask(self._proxy.numbers))
            case "/healthz", "GET":
                self._ask(lambda: None)
                if self._relay is not None:
                    self._relay.check()
                return HTTPStatus.OK, "ok"
        allowed = {
            "/toxics": "GET, POST",
            "/blackout": "POST",
            "/reset": "POST",
            "/state": "GET",
            "/healthz": "GET",
        }
        if path in allowed:
            raise _wrong_method(path, method, allowed[path])
        raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is no {path}; there is {PATHS}")

    def _on_one(self, name: str, method: str, environ: Mapping[str, Any]) -> tuple[HTTPStatus, Any]:
        """Of one toxic."""
        match method:
            case "GET":
                return HTTPStatus.OK, self._proxy.collection.found(name)
            case "PATCH":
                changes = _body(environ)
                after, _ = self._changed(lambda collection: collection.change(name, changes), lets_go=True)
                return HTTPStatus.OK, after.found(name)
            case "DELETE":
                after, _ = self._changed(lambda collection: collection.remove(name), lets_go=True)
                return HTTPStatus.OK, after.listed()
        raise _wrong_method(f"/toxics/{name}", method, "GET, PATCH, DELETE")

    def _changed(
        self, change: Callable[[ToxicCollection], Any], *, lets_go: bool = False
    ) -> tuple[ToxicCollection, Any]:
        """The toxics as they are after a change, and what that returned. lets_go: messages that wait go on at once."""
        with self._changing:
            after = copy(self._proxy.collection)
            made = change(after)
            self._ask(partial(self._proxy.adopt, after, lets_go=lets_go))
        return after, made

    def _numbers_or_none(self) -> Numbers | None:
        try:
            numbers: Numbers = self._ask(self._proxy.numbers)
        except TimeoutError:
            return None
        return numbers


def _wrong_method(path: str, method: str, allowed: str) -> _RefusedError:
    sentence = f"{path} takes no {method}, expected {allowed.replace(', ', ' or ')}"
    return _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, sentence, allowed)


def _body(environ: Mapping[str, Any]) -> Any:
    """The JSON that came with a request."""
    length = environ.get("CONTENT_LENGTH") or "0"
    if not length.isdecimal() or length.strip("0") == "":
        raise _RefusedError(HTTPStatus.BAD_REQUEST, "the request has no body, expected a JSON object")
    if len(length) > LENGTH_DIGITS_MAX:
        raise _RefusedError(HTTPStatus.BAD_REQUEST, "Content-Length is not a number of bytes")
    if int(length) > BODY_BYTES_MAX:
        raise _RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body has {length} bytes, expected at most {BODY_BYTES_MAX}",
        )
    try:
        return json.loads(environ["wsgi.input"].read(int(length)), parse_constant=_no_number)
    except TimeoutError:
        raise _RefusedError(HTTPStatus.REQUEST_TIMEOUT, "the body did not come in time") from None
    except (ValueError, RecursionError):
        raise _RefusedError(HTTPStatus.BAD_REQUEST, "the body is not JSON, expected a JSON object") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
