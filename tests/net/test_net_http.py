"""The small HTTP server: peers that disconnect early or send nothing, and requests that it refuses."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from select import select
from typing import Any

import pytest

from support.running import PATIENCE_S
from unstale.net import http
from unstale.net.http import HttpServer

pytestmark = pytest.mark.network


def application(_: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [bytes(1_000_000)]


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    server = HttpServer("127.0.0.1:0", application, key="key")
    host, port = server.address.split(":")
    yield host, int(port)
    server.close()


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_peer_that_disconnects_early_is_not_logged(
    said: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    finish = http._Server.shutdown_request

    def shutdown_request(self: Any, request: Any) -> None:
        finish(self, request)
        ended.set()

    monkeypatch.setattr(http._Server, "shutdown_request", shutdown_request)
    server = HttpServer("127.0.0.1:0", application, key="key")
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
        client.sendall(said)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ended.wait(PATIENCE_S)
    server.close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", "[::1", "2130706433"])
def test_a_request_under_a_foreign_host_name_is_refused(name: str, address: tuple[str, int]) -> None:
    with closing(HTTPConnection(*address, timeout=PATIENCE_S)) as connection:
        connection.request("GET", "/", headers={"Host": name})
        answer = connection.getresponse()
        said = f"Host is {name!r}, expected localhost or an address; let a proxy on this machine set one of them\n"
        assert (answer.status, answer.read().decode()) == (403, said)


@pytest.mark.parametrize("name", ["localhost:9464", "LOCALHOST", "127.0.0.1", "10.1.2.3:80", "[::1]:9464", ""])
def test_a_request_by_address_or_localhost_is_answered(name: str, address: tuple[str, int]) -> None:
    with closing(HTTPConnection(*address, timeout=PATIENCE_S)) as connection:
        connection.request("GET", "/", headers={"Host": name})
        assert connection.getresponse().status == 200


@pytest.mark.slow
def test_a_complete_request_takes_the_place_of_the_oldest_one_that_drips(address: tuple[str, int]) -> None:
    with ExitStack() as stack:
        dripping = [
            stack.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
            for _ in range(http.CONNECTIONS_MAX)
        ]
        for one in dripping:
            one.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        for _ in range(3):
            assert _status(address) == 200
        assert dripping[0].recv(1) == b""
        # Three requests took three places at most: the last one has its own.
        dripping[-1].sendall(b"x\r\n\r\n")
        assert dripping[-1].recv(15) == b"HTTP/1.0 200 OK"


def test_a_peer_with_a_complete_request_keeps_its_place_while_others_drip() -> None:
    connections = http._Connections()
    near, far, other = (socket_pair() for _ in range(3))
    connections.add(near[0], "10.0.0.1")
    connections.add(far[0], "10.0.0.2")
    connections.set_complete(near[0])
    connections.add(other[0], "10.0.0.2")
    assert connections.cut_one()
    assert far[1].recv(1) == b""
    assert connections.cut_one()
    assert other[1].recv(1) == b""
    assert connections.cut_one()
    assert near[1].recv(1) == b""
    assert not connections.cut_one()
    for pair in (near, far, other):
        for one in pair:
            one.close()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends; a read waits for a while only."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE_S)
    return ours, theirs


def _status(address: tuple[str, int]) -> int:
    with closing(HTTPConnection(*address, timeout=PATIENCE_S)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().status


def test_a_request_that_comes_byte_by_byte_is_cut_off(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.05)
    with socket.create_connection(address, timeout=PATIENCE_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        for _ in range(1000):  # never silent for as long as a connection may be
            ready, _, _ = select([client], [], [], 0.01)
            if ready:
                return  # an answer, or the end
            client.sendall(b"x")
    raise AssertionError("it is listened to for ever")
