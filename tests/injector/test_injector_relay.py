"""Bytes through the relay alone: none is changed or lost, ends are forwarded, and a cut is a reset."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from support.running import PATIENCE_S
from unstale.errors import UserError
from unstale.injector import calls
from unstale.injector.relay import HELD_BYTES_MAX, Relay
from unstale.toxics import registry
from unstale.toxics.link import Applied
from unstale_client.net.clock import now_s

pytestmark = pytest.mark.network


class RelayWithListener:
    """A relay with a listener behind it. crashes: its exceptions."""

    def __init__(self, *toxics: dict[str, Any]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(PATIENCE_S)
        self.crashes: list[BaseException] = []
        self.relay = Relay(
            "tcp://127.0.0.1:0",
            f"tcp://127.0.0.1:{self.listener.getsockname()[1]}",
            seed=0,
            started_s=now_s(),
            connections_max=3,
            on_crash=self.crashes.append,
        )
        self.change(*toxics)
        self.relay.start()
        self._open: list[socket.socket] = []

    def change(self, *toxics: dict[str, Any]) -> None:
        self.relay.change([Applied(registry.create({"name": f"{i}", **one}, "test")) for i, one in enumerate(toxics)])

    def connected(self) -> tuple[socket.socket, socket.socket]:
        """Both ends of a connection through it."""
        host, port = self.relay.address.removeprefix("tcp://").split(":")
        outer = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        inner, _ = self.listener.accept()
        inner.settimeout(PATIENCE_S)
        self._open += [outer, inner]
        return outer, inner

    def close(self) -> None:
        self.relay.close()
        for one in (*self._open, self.listener):
            one.close()
        assert not self.crashes


@pytest.fixture
def relayed(request: pytest.FixtureRequest) -> Iterator[RelayWithListener]:
    made = RelayWithListener()
    yield made
    made.close()


def read(one: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = one.recv(count - len(parts))
        assert part, f"it ended after {len(parts)} bytes"
        parts += part
    return parts


def test_bytes_and_ends_pass_in_both_directions(relayed: RelayWithListener) -> None:
    outer, inner = relayed.connected()
    sent = bytes(range(256)) * 300
    for one, other in ((outer, inner), (inner, outer)):
        one.sendall(sent)
        assert read(other, len(sent)) == sent
    outer.shutdown(socket.SHUT_WR)
    assert inner.recv(1) == b""
    inner.sendall(b"still open this way")
    assert read(outer, 19) == b"still open this way"
    inner.close()
    assert outer.recv(1) == b""


def test_a_cut_resets_that_connection_and_no_other(relayed: RelayWithListener) -> None:
    outer, inner = relayed.connected()
    other, other_inner = relayed.connected()
    port = inner.getpeername()[1]
    relayed.relay.assign(port, 3)
    relayed.relay.cut(port, 3)
    for one in (outer, inner):
        with pytest.raises(ConnectionResetError):
            one.recv(1)
    other.sendall(b"here")
    assert read(other_inner, 4) == b"here"


def test_delayed_bytes_are_bounded_and_delivered_complete_after_the_blackout(relayed: RelayWithListener) -> None:
    relayed.change({"type": "blackout", "layer": "tcp", "start_s": 0, "end_s": 1e6})
    outer, inner = relayed.connected()
    outer.settimeout(0.2)
    sent = 0
    try:
        while sent < 2**30:
            sent += outer.send(bytes(65536))
    except TimeoutError:
        pass  # it has stopped reading, and the buffers of the system are full
    assert sent < 2**30
    (connection,) = relayed.relay._by_port.values()
    assert connection.streams[0].buffered_bytes <= HELD_BYTES_MAX + 65536
    relayed.change()
    assert read(inner, sent) == bytes(sent)


def test_a_toxic_of_one_client_applies_once_its_connection_is_known(relayed: RelayWithListener) -> None:
    blackout = registry.create({"name": "dark", "type": "blackout", "layer": "tcp", "start_s": 0, "end_s": 1e6}, "test")
    relayed.relay.change([Applied(blackout, frozenset({3}))])
    outer, inner = relayed.connected()
    outer.sendall(b"no hello yet")
    assert read(inner, 12) == b"no hello yet"
    relayed.relay.assign(inner.getpeername()[1], 3)
    other, other_inner = relayed.connected()  # the relay has processed its calls before it forwards this
    other.sendall(b"x")
    assert read(other_inner, 1) == b"x"
    outer.sendall(b"lost for now")
    inner.settimeout(0.1)
    with pytest.raises(TimeoutError):
        inner.recv(1)


def test_a_port_that_now_belongs_to_another_client_is_not_cut(relayed: RelayWithListener) -> None:
    outer, inner = relayed.connected()
    port = inner.getpeername()[1]
    relayed.relay.assign(port, 4)
    relayed.relay.cut(port, 3)
    relayed.relay.check()
    outer.sendall(b"here")
    assert read(inner, 4) == b"here"


def test_connections_are_bounded(relayed: RelayWithListener) -> None:
    taken = [relayed.connected() for _ in range(3)]
    host, port = relayed.relay.address.removeprefix("tcp://").split(":")
    with (
        pytest.raises(ConnectionResetError),
        socket.create_connection((host, int(port)), timeout=PATIENCE_S) as refused,
    ):
        refused.recv(1)
    for one in taken[0]:
        one.close()
    while len(relayed.relay._by_port) == 3:
        relayed.relay.check()
    outer, inner = relayed.connected()
    outer.sendall(b"room")
    assert read(inner, 4) == b"room"


def test_a_wait_may_be_longer_than_a_poll_can_be(relayed: RelayWithListener) -> None:
    relayed.change({"type": "blackout", "layer": "tcp", "start_s": 0, "end_s": 1e9})
    outer, inner = relayed.connected()
    outer.sendall(b"here")
    while not relayed.relay._due:
        relayed.relay.check()
    relayed.relay.check()
    relayed.change()
    assert read(inner, 4) == b"here"


def test_the_counts_of_removed_toxics_are_dropped(relayed: RelayWithListener) -> None:
    relayed.change({"type": "bandwidth", "layer": "tcp", "bytes_per_s": 1e9})
    outer, inner = relayed.connected()
    outer.sendall(b"here")
    assert read(inner, 4) == b"here"
    assert relayed.relay.counts.touched["0"] >= 1
    relayed.change()
    relayed.relay.check()
    assert not relayed.relay.counts.touched


def test_a_relay_whose_loop_is_blocked_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ANSWER_S", 0.01)
    relay = Relay("tcp://127.0.0.1:0", "tcp://127.0.0.1:1", seed=0, started_s=0.0, connections_max=1, on_crash=print)
    with pytest.raises(TimeoutError, match="the injector's relay does not answer"):
        relay.check()
    relay.close()


def test_a_stopped_proxy_ends_the_connection(relayed: RelayWithListener) -> None:
    relayed.listener.close()
    host, port = relayed.relay.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as outer:
        assert outer.recv(1) == b""


@pytest.mark.parametrize("address", ["tcp://127.0.0.1", "127.0.0.1:1", "tcp://:1", "tcp://127.0.0.1:x", "tcp://[::1:5"])
def test_an_invalid_address_gets_a_one_sentence_error(address: str) -> None:
    with pytest.raises(UserError, match=r"^injector\.address is .*, expected tcp://HOST:PORT$"):
        Relay(address, "tcp://127.0.0.1:1", seed=0, started_s=0.0, connections_max=1, on_crash=print)
