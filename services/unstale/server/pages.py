"""The status page of the server, and the state of the run as a stream of events or as one JSON document.

Twice a second each stream takes the newest sample and sends the sections that changed. No reader delays another.
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

from unstale.net.clock import now_s
from unstale.net.http import Application
from unstale.server.status import Live, Status

SAMPLE_S = 0.5  # between two samples
HEARTBEAT_S = 10.0  # longest silence of a stream, so that a page detects a dead link
STREAMS_MAX = 16  # each has a thread; Prometheus serves more readers
CLOSE_S = 1.0  # longest time in which open pages receive the last sample
RETRY_MS = 1000  # until a page tries to connect again

SCRIPTS = ("format.js", "charts.js", "tables.js", "page.js")


class Sample(NamedTuple):
    """The state of the run at one time."""

    number: int  # counts samples that differ
    elapsed_s: float | None
    parts: Mapping[str, str]  # JSON by section


class Pages:
    """The applications of `/`, `/events` and `/status.json`, until closed. Threads of the HTTP server call `live`."""

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
            "/": partial(_takes, "GET, HEAD", _page),
            "/events": partial(_takes, "GET", self._events),
            "/status.json": partial(_takes, "GET, HEAD", self._status_json),
        }

    def close(self) -> None:
        """Tell open pages how the run stands at last, and let go of them."""
        self._closing.set()
        with self._streams_changed:
            self._streams_changed.wait_for(lambda: self._streams == 0, CLOSE_S)

    def _newest(self, *, at_once: bool = False) -> Sample:
        """A recent sample, shared between requests that follow soon. at_once: a new one. Any thread."""
        with self._lock:
            if at_once or now_s() >= self._due_s:
                live = self._live()
                sections = self._status.sections(live)
                parts = {name: _json(section) for name, section in sections.items()}
                number = self._last.number + (parts != self._last.parts)
                self._last = Sample(number, self._status.elapsed_s(live), parts)
                self._due_s = now_s() + SAMPLE_S / 2
            return self._last

    def _status_json(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        sample = self._newest()
        body = f"{_data(sample, sample.parts)}\n".encode()
        return _send(environ, start_response, body, kind="application/json")

    def _events(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._slot() as is_free:
            if not is_free:
                why = f"{STREAMS_MAX} streams are open, which is the limit; close one, or read /status.json\n".encode()
                return _send(environ, start_response, why, "503 Service Unavailable", headers=[("Retry-After", "10")])
            headers = [("Content-Type", "text/event-stream; charset=utf-8"), ("X-Accel-Buffering", "no")]
            write = start_response("200 OK", [*headers, *_common()])
            try:
                self._stream(write)
            except TimeoutError:  # it takes nothing any more
                raise ConnectionAbortedError("the reader of a stream is gone") from None
        return []

    def _stream(self, write: Callable[[bytes], object]) -> None:
        """Everything at once, then what changes, until the end."""
        sent = self._newest()
        write(_event("snapshot", sent, sent.parts, f"retry: {RETRY_MS}\n"))
        said_s = now_s()
        over = False
        while not over:
            over = self._closing.wait(SAMPLE_S)
            sample = self._newest(at_once=over)
            if sample.number != sent.number:
                changed = {name: part for name, part in sample.parts.items() if part != sent.parts[name]}
                write(_event("change", sample, changed))
            elif now_s() - said_s >= HEARTBEAT_S:
                write(_event("alive", sample, {}, ": the server is there\n"))
            else:
                continue
            sent, said_s = sample, now_s()

    @contextmanager
    def _slot(self) -> Iterator[bool]:
        """One of the streams that there may be, if one is free."""
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
    """The page with its style and script in it, and the Content-Security-Policy under which nothing else may run."""
    folder = files("unstale.server") / "page"
    page, style, *scripts = (
        (folder / name).read_text(encoding="utf-8") for name in ("index.html", "style.css", *SCRIPTS)
    )
    script = "\n".join(scripts)
    assert "</" not in script, "what looks like a tag would end the script"
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


def _common() -> list[tuple[str, str]]:
    """Headers of every answer: a list of its own for each, because wsgiref adds its length to it."""
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
    content = [("Content-Type", f"{kind}; charset=utf-8"), *headers, *_common(), ("Content-Length", str(len(body)))]
    start_response(status, content)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def _takes(allowed: str, answer: Application, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """An answer to the methods that are allowed, separated by commas, and an error to others."""
    method = environ["REQUEST_METHOD"]
    if method in allowed.split(", "):
        return answer(environ, start_response)
    why = f"{environ['PATH_INFO']} takes no {method}, expected {allowed.replace(', ', ' or ')}\n".encode()
    return _send(environ, start_response, why, "405 Method Not Allowed", headers=[("Allow", allowed)])


def _event(kind: str, sample: Sample, parts: Mapping[str, str], before: str = "") -> bytes:
    """One event of a stream, whose data is one line. before: further lines of it."""
    return f"{before}id: {sample.number}\nevent: {kind}\ndata: {_data(sample, parts)}\n\n".encode()


def _data(sample: Sample, parts: Mapping[str, str]) -> str:
    """An object with the time and these sections, which are JSON already."""
    members = {"elapsed_s": _json(sample.elapsed_s), **parts}
    return "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
