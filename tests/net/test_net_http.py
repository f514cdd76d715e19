"""The small HTTP server: who hangs up early, or says nothing, leaves no trace."""

import socket
import struct
import threading
from typing import Any

import pytest

from support.running import PATIENCE_S
from unstale.net import http
from unstale.net.http import HttpServer

pytestmark = pytest.mark.network


def application(_: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [bytes(1_000_000)]


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\n\r\n"])
def test_who_hangs_up_early_is_not_talked_about(
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
