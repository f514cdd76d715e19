"""Facts of connections of another owner, and their end; through real sockets."""

import os
import socket
import sys
from collections.abc import Iterator

import pytest

from support.running import PATIENCE_S, until
from unstale.net import tcp

pytestmark = pytest.mark.network

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Accepted and connecting end of one connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname(), timeout=PATIENCE_S) as theirs,
    ):
        ours, _ = listening.accept()
        with ours:
            yield ours, theirs


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_bytes_count_once_they_were_read(pair: Pair) -> None:
    ours, theirs = pair
    assert tcp.received_bytes(ours.fileno()) == (0, 0)
    theirs.sendall(bytes(10_000))
    assert ours.recv(4_000, socket.MSG_WAITALL) == bytes(4_000)
    until(lambda: tcp.received_bytes(ours.fileno()) == (4_000, 6_000), "the rest waits in the kernel")
    ours.recv(6_000, socket.MSG_WAITALL)
    assert tcp.received_bytes(ours.fileno()) == (10_000, 0)


def test_the_end_of_a_connection_is_read_on_both_sides(pair: Pair) -> None:
    ours, theirs = pair
    peer = tcp.peer_of(ours.fileno())
    assert peer == theirs.getsockname()
    assert tcp.end(ours.fileno(), peer)
    for one in (ours, theirs):
        try:
            assert one.recv(1) == b""
        except ConnectionResetError:
            continue
    assert tcp.peer_of(ours.fileno()) is None
    assert ours.fileno() >= 0  # still open: its owner closes it


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is read on")
def test_unread_bytes_of_an_ended_connection_are_dropped(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(bytes(10_000))
    until(lambda: len(ours.recv(10_000, socket.MSG_PEEK)) == 10_000)
    assert tcp.end(ours.fileno(), theirs.getsockname())
    with pytest.raises(ConnectionResetError):
        ours.recv(10_000)


def test_a_descriptor_that_is_something_else_by_now_is_left_alone(pair: Pair) -> None:
    ours, theirs = pair
    assert not tcp.end(ours.fileno(), ("127.0.0.1", 1))
    ours.sendall(b"x")
    assert theirs.recv(1) == b"x"
    reader, writer = os.pipe()
    assert tcp.peer_of(reader) is None
    assert tcp.received_bytes(reader) is None
    assert not tcp.end(reader, ("127.0.0.1", 1))
    for one in (reader, writer):
        os.close(one)
    assert tcp.peer_of(reader) is None  # closed
