"""A client without a connection gets another socket, but only where its own has had the time to reconnect."""

from collections.abc import Iterator
from typing import Any

import pytest

from support.idle_worker import IdleWorker
from unstale_client import loop
from unstale_client.loop import AWAY_S, ClientLoop, HostedClient

pytestmark = pytest.mark.network

BEGAN_S, BACK_S = 100.0, 1000.0  # the server is away in between


class Hosted:
    """Three clients without a server, on a simulated clock. The first one is watched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = BEGAN_S
        monkeypatch.setattr(loop, "now_s", lambda: self.now_s)
        self.process = ClientLoop(
            server="tcp://127.0.0.1:9", client_ids=range(3), worker=IdleWorker, heartbeat_s=60.0, linger_s=0.0
        )
        monkeypatch.setattr(self.process, "_send", self._send)
        self.has_connection = True
        self.clients: list[HostedClient] = list(self.process._clients.values())

    def connects(self, client_id: int, at_s: float) -> None:
        self.now_s = at_s
        client = self.clients[client_id]
        self.process._execute(client, client.session.reachable(at_s))

    def loses_its_connection(self, client_id: int, at_s: float) -> None:
        self.now_s, self.has_connection = at_s, False
        client = self.clients[client_id]
        assert client.session.due_s is not None
        self.process._execute(client, client.session.tick(client.session.due_s))
        self.has_connection = True

    def _send(self, *_: Any) -> bool:
        return self.has_connection


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosted]:
    made = Hosted(monkeypatch)
    yield made
    made.process.stop()
    made.process.run()  # ends at once, and closes its sockets


def test_no_socket_is_replaced_while_the_watched_client_is_away(hosted: Hosted) -> None:
    assert hosted.process._reconnect_due_s == float("inf")
    hosted.connects(1, BACK_S)
    assert hosted.process._reconnect_due_s == float("inf")


def test_after_an_outage_each_client_has_the_time_to_reconnect(hosted: Hosted) -> None:
    hosted.connects(0, BACK_S)
    assert hosted.process._reconnect_due_s == BACK_S + AWAY_S
    hosted.connects(1, BACK_S + 1)
    assert hosted.process._reconnect_due_s == BACK_S + AWAY_S
    hosted.connects(2, BACK_S + 2)
    assert hosted.process._reconnect_due_s == float("inf")


def test_the_client_that_is_away_longest_gets_another_socket(hosted: Hosted) -> None:
    for client_id in range(3):
        hosted.connects(client_id, BEGAN_S)
    hosted.loses_its_connection(2, BACK_S)
    hosted.loses_its_connection(1, BACK_S + 1)
    before = [client.socket for client in hosted.clients]
    assert hosted.process._reconnect_due_s == BACK_S + AWAY_S
    hosted.process._reconnect(BACK_S + AWAY_S)
    assert [client.socket is socket for client, socket in zip(hosted.clients, before, strict=True)] == [
        True, True, False
    ]  # fmt: skip
    assert hosted.process._handshakes.socket is hosted.clients[2].socket  # watched, and away
    assert hosted.process._reconnect_due_s == float("inf")
    hosted.connects(2, BACK_S + AWAY_S)
    assert hosted.process._reconnect_due_s == BACK_S + 1 + AWAY_S
