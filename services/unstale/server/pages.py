"""The status page of the server, and the state of the run as a stream of events or as one JSON document.

Twice a second each stream sends the sections that changed, in a thread of its own: a slow reader delays no other.
"""

import json
import threading
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from typing import Any, NamedTuple

from unstale.net.http import Application
from unstale.server.status import Live, Status
from unstale_client.net.clock import now_s

SAMPLE_S = 0.5  # between two samples of a stream
HEARTBEAT_S = 10.0  # longest time without an event, so that a page detects a lost connection
STREAMS_MAX = 16  # each needs a thread; for more readers there are metrics
CLOSE_S = 1.0  # longest wait of `close` for streams to send the last sample
RETRY_MS = 1000  # until a page reconnects

SCRIPTS = ("format.js", "charts.js", "tables.js", "page.js")


class Sample(NamedTuple):
    """The state of the run at one time."""

    number: int  # increases when `parts` change
    elapsed_s: float | None
    parts: Mapping[str, str]  # JSON by section


class Pages:
    """WSGI applications of `/`, `/events` and `/status.json`. live: called by one HTTP thread at a time."""

    def __init__(self, status: Status, live: Callable[[], Live]) -> None:
        self._status = status
        self._live = live
        self._lock = threading.Lock()
        self._last = Sample(0, None, {})
        self._due_s = now_s()
        self._closing = threading.Event()
        self._streams = 0
        self._streams_changed = threading.Condition()
        self.routes: dict[str, Application] = {
            "/": partial(_with_methods, "GET, HEAD", _page),
            "/events": partial(_with_methods, "GET", self._events),
            "/status.json": partial(_with_methods, "GET, HEAD", self._status_json),
        }

    def close(self) -> None:
        """Send the last sample to open streams and end them."""
        self._closing.set()
        with self._streams_changed:
            self._streams_changed.wait_for(lambda: self._streams == 0, CLOSE_S)

    def _sample(self, *, fresh: bool = False) -> Sample:
        """A sample at most SAMPLE_S / 2 old, shared by all requests. fresh: a new one. Any thread."""
        with self._lock:
            if fresh or now_s() >= self._due_s:
                live = self._live()
                sections = self._status.sections(live)
                parts = {name: _json(section) for name, section in sections.items()}
                number = self._last.number + (parts != self._last.parts)
                self._last = Sample(number, self._status.elapsed_s(live), parts)
                self._due_s = now_s() + SAMPLE_S / 2  # each tick of a stream gets a new sample
            return self._last

    def _status_json(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        sample = self._sample()
        body = f"{_data(sample, sample.parts)}\n".encode()
        return _send(environ, start_response, body, kind="application/json")

    def _events(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._stream_slot() as is_free:
            if not is_free:
                error = f"no stream is free of {STREAMS_MAX}, or the server stops; read /status.json\n".encode()
                return _send(environ, start_response, error, "503 Service Unavailable", headers=[("Retry-After", "10")])
            headers = [("Content-Type", "text/event-stream; charset=utf-8"), ("X-Accel-Buffering", "no")]
            write = start_response("200 OK", [*headers, *_headers()])
            try:
                self._stream(write)
            except TimeoutError:  # its buffer stays full
                raise ConnectionAbortedError("the client of a stream reads no more") from None
        return []

    def _stream(self, write: Callable[[bytes], object]) -> None:
        """Send all sections, then changed ones, until `close`."""
        sent = self._sample()
        write(_event("snapshot", sent, sent.parts, f"retry: {RETRY_MS}\n"))
        sent_s = now_s()
        is_closing = False
        while not is_closing:
            is_closing = self._closing.wait(SAMPLE_S)
            sample = self._sample(fresh=is_closing)
            if sample.number != sent.number:
                changed = {name: part for name, part in sample.parts.items() if part != sent.parts[name]}
                write(_event("change", sample, changed))
            elif now_s() - sent_s >= HEARTBEAT_S:
                write(_event("alive", sample, {}, ": the server is there\n"))
            else:
                continue
            sent, sent_s = sample, now_s()

    @contextmanager
    def _stream_slot(self) -> Iterator[bool]:
        """Take one of STREAMS_MAX slots for the block; yields whether one was free."""
        with self._streams_changed:
            is_free = self._streams < STREAMS_MAX and not self._closing.is_set()
            self._streams += is_free
        try:
            yield is_free
        finally:
            with self._streams_changed:
                self._streams -= is_free
                self._streams_changed.notify_all()


@cache
def assembled() -> tuple[bytes, str]:
    """The page with style and script inlined, and a Content-Security-Policy that allows no other script or style."""
    folder = files("unstale.server") / "page"
    page, style, *scripts = (
        (folder / name).read_text(encoding="utf-8") for name in ("index.html", "style.css", *SCRIPTS)
    )
    script = "\n".join(scripts)
    assert "</" not in script, "`</` may end a script element"
    for reference, text in (
        ('<link rel="stylesheet" href="style.css">', f"<style>{style}</style>"),
        ('<script type="module" src="page.js"></script>', f'<script type="module">{script}</script>'),
    ):
        assert page.count(reference) == 1, reference
        page = page.replace(reference, text)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return page.encode(), policy


def _page(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    page, policy = assembled()
    return _send(environ, start_response, page, kind="text/html", headers=[("Content-Security-Policy", policy)])


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _headers() -> list[tuple[str, str]]:
    """Headers of every response. A new list each time, because wsgiref appends Content-Length to it."""
    return [
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    ]


def _send(
    environ: dict[str, Any],
    start_response: Any,
    body: bytes,
    status: str = "200 OK",
    kind: str = "text/plain",
    headers: Sequence[tuple[str, str]] = (),
) -> Iterable[bytes]:
    content = [("Content-Type", f"{kind}; charset=utf-8"), *headers, *_headers(), ("Content-Length", str(len(body)))]
    start_response(status, content)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def _with_methods(allowed: str, answer: Application, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Respond with `answer` to allowed methods, which are separated by commas, and with an error to others."""
    method = environ["REQUEST_METHOD"]
    if method in allowed.split(", "):
        return answer(environ, start_response)
    error = f"{environ['PATH_INFO']} takes no {method}, expected {allowed.replace(', ', ' or ')}\n".encode()
    return _send(environ, start_response, error, "405 Method Not Allowed", headers=[("Allow", allowed)])


def _event(kind: str, sample: Sample, parts: Mapping[str, str], before: str = "") -> bytes:
    """One event of a stream, with its data in one line. before: lines to prepend."""
    return f"{before}id: {sample.number}\nevent: {kind}\ndata: {_data(sample, parts)}\n\n".encode()


def _data(sample: Sample, parts: Mapping[str, str]) -> str:
    """A JSON object with the time and these sections. parts: encoded sections."""
    members = {"elapsed_s": _json(sample.elapsed_s), **parts}
    return "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
