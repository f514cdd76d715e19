"""The status page, its events and its JSON over real sockets."""

import http.client
import json
import re
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from typing import Any, NamedTuple, Self

import pytest

from support.running import PATIENCE_S, until
from support.scrape import get
from support.shown import ABOUT, Site
from unstale.net import http as net_http
from unstale.server import pages

pytestmark = pytest.mark.network


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits half a second for a new sample."""
    monkeypatch.setattr(pages, "SAMPLE_S", 0.01)


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as made:
        yield made


class Event(NamedTuple):
    """An event of a stream: its fields by name, data decoded, and the comments before it."""

    fields: dict[str, str]
    data: dict[str, Any]
    comments: list[str]


class Stream:
    """An open stream, read event by event. Left as a context, it is hung up."""

    def __init__(self, site: Site) -> None:
        self._connection = http.client.HTTPConnection(site.address, timeout=PATIENCE_S)
        self._connection.request("GET", "/events")
        self.answer = self._connection.getresponse()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.answer.close()
        self._connection.close()

    def next(self) -> Event:
        lines = list(iter(lambda: self.answer.readline().decode().removesuffix("\n"), ""))
        fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
        return Event(fields, json.loads(fields["data"]), [line for line in lines if line.startswith(":")])


def asked(site: Site, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer."""
    with closing(http.client.HTTPConnection(site.address, timeout=PATIENCE_S)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


def test_the_page_is_one_file_whose_policy_allows_requests_to_its_server_only(site: Site) -> None:
    status, headers, body = asked(site, "GET", "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    page = body.decode()
    for element, directive in (("style", "style-src"), ("script", "script-src")):
        (text,) = re.findall(rf"<{element}[^>]*>(.*?)</{element}>", page, re.DOTALL)
        assert policy[directive] == f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
    assert set(re.findall(r"https?://[^\s\"'<>]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, no address
    assert not re.search(r"<[^>]*\s(on\w+|style)=", page.partition("<script")[0])
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", page)


@pytest.mark.parametrize("path", ["/", "/status.json", "/events"])
def test_answers_are_for_this_page_alone_and_are_not_kept(path: str, site: Site) -> None:
    with closing(http.client.HTTPConnection(site.address, timeout=PATIENCE_S)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        headers = dict(answer.getheaders())
        answer.close()
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("path", ["/", "/status.json"])
def test_head_has_the_headers_of_get_and_no_body(path: str, site: Site) -> None:
    _, headers, body = asked(site, "GET", path)
    status, same, nothing = asked(site, "HEAD", path)
    assert (status, nothing) == (200, b"")
    assert same["Content-Length"] == headers["Content-Length"] == str(len(body))
    assert same["Content-Type"] == headers["Content-Type"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("POST", "/", "GET, HEAD"), ("DELETE", "/status.json", "GET, HEAD"), ("POST", "/events", "GET")],
)
def test_nothing_can_be_changed(method: str, path: str, allowed: str, site: Site) -> None:
    status, headers, body = asked(site, method, path)
    assert (status, headers["Allow"]) == (405, allowed)
    assert body.decode() == f"{path} takes no {method}, expected {allowed.replace(', ', ' or ')}\n"


def test_the_answer_to_an_unknown_path_lists_the_known_ones(site: Site) -> None:
    page = get(f"{site.url}status")
    assert (page.status, page.text) == (404, "there is /metrics, /healthz, /readyz, /, /events and /status.json\n")


def test_programs_read_what_the_page_shows(site: Site) -> None:
    site.begin()
    site.round()
    status, headers, body = asked(site, "GET", "/status.json")
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    answer = json.loads(body)
    assert answer.pop("elapsed_s") == 1.0
    assert answer == json.loads(json.dumps(site.status.sections(site.live)))
    assert answer["run"] == ABOUT


def test_a_stream_starts_with_the_whole_status_and_continues_with_changes(site: Site) -> None:
    with Stream(site) as stream:
        assert stream.answer.status == 200
        assert stream.answer.getheader("Content-Type") == "text/event-stream; charset=utf-8"
        assert stream.answer.getheader("Content-Length") is None
        first = stream.next()
        assert set(first.fields) == {"retry", "id", "event", "data"}
        assert (first.fields["retry"], first.fields["event"]) == (str(pages.RETRY_MS), "snapshot")
        assert first.data == {"elapsed_s": None, **json.loads(json.dumps(site.status.sections(site.live)))}
        site.status.rejected("non-finite")
        second = stream.next()
        assert second.fields["event"] == "change"
        assert int(second.fields["id"]) > int(first.fields["id"])
        rejections = {"updates": {"non-finite": 1}, "messages": {}, "tasks": {}, "quarantines": 0}
        assert second.data == {"elapsed_s": None, "rejections": rejections}


def test_a_reader_that_was_slow_gets_the_newest_sample_and_none_between(site: Site) -> None:
    with Stream(site) as stream:
        stream.next()
        site.begin()
        for _ in range(60):
            site.round()
        versions = [0]
        while versions[-1] < 60:
            state = stream.next().data.get("state")
            versions += [state["version"]] if state else []
        assert len(versions) < 61


def test_a_quiet_stream_sends_heartbeats(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "HEARTBEAT_S", 0.0)
    with Stream(site) as stream:
        snapshot, alive = stream.next(), stream.next()
        assert alive.comments == [": the server is there"]
        assert (alive.fields["event"], alive.fields["id"]) == ("alive", snapshot.fields["id"])
        assert alive.data == {"elapsed_s": None}


def test_streams_are_bounded_and_a_place_that_is_left_is_given_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "STREAMS_MAX", 2)
    monkeypatch.setattr(pages, "HEARTBEAT_S", 0.0)  # a closed stream is detected at the next write
    with Stream(site) as first:
        first.next()
        with Stream(site) as second:
            second.next()
            status, headers, body = asked(site, "GET", "/events")
            assert (status, headers["Retry-After"]) == (503, "10")
            assert body == b"no stream is free of 2, or the server stops; read /status.json\n"
            assert asked(site, "GET", "/status.json")[0] == 200
        until(lambda: site.pages._streams == 1, "a place becomes free")
        with Stream(site) as third:
            assert third.next().fields["event"] == "snapshot"
        first.next()


def test_a_reader_that_does_not_read_delays_no_other(capfd: pytest.CaptureFixture[str]) -> None:
    with Site(data="x" * 32_000_000) as site:  # more than the sockets between them buffer
        host, port = site.address.split(":")
        with socket.create_connection((host, int(port))) as stuck:
            stuck.sendall(b"GET /events HTTP/1.0\r\n\r\n")
            until(lambda: site.pages._streams == 1, "the stream begins")
            site.begin()
            site.round()
            site.status.evaluated(2, {"accuracy": 0.5, "loss": 1.0}, "central", evaluate_s=0.0)
            assert json.loads(asked(site, "GET", "/status.json")[2])["state"]["version"] == 1
        until(lambda: site.pages._streams == 0, "its end is noticed")
    assert capfd.readouterr().err == ""


def test_a_reader_that_does_not_read_for_long_loses_its_place(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(net_http._Handler, "timeout", 0.1)
    with Site(data="x" * 32_000_000) as site:
        host, port = site.address.split(":")
        with socket.create_connection((host, int(port))) as stuck:
            stuck.sendall(b"GET /events HTTP/1.0\r\n\r\n")
            assert stuck.recv(1)
            until(lambda: site.pages._streams == 0, "the server gives it up")
    assert capfd.readouterr().err == ""


def test_closing_sends_the_last_status_and_ends_the_streams(site: Site) -> None:
    with Stream(site) as stream:
        stream.next()
        site.begin()
        for _ in range(100):
            site.round()
        site.finish()
        site.pages.close()
        assert site.pages._streams == 0
        state: dict[str, Any] = {}
        for line in stream.answer.read().decode().splitlines():
            if line.startswith("data: "):
                state |= json.loads(line.removeprefix("data: ")).get("state", {})
        assert (state["standing"], state["version"], state["digest"]) == ("finished", 100, "f" * 64)
    assert asked(site, "GET", "/events")[0] == 503  # no new stream is accepted after it
