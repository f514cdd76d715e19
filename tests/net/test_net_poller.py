"""A poller that asks only the sockets in use, through real sockets: it loses no event."""

import socket as sockets_of_python
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from support.running import PATIENCE_S
from unstale.seeds import Stream, stream
from unstale_client.net.poller import Poller

pytestmark = pytest.mark.network

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]


class Pairs:
    """Connected pairs over TCP: the polled sockets and their peers."""

    def __init__(self, context: Context, count: int) -> None:
        self.polled: list[Socket] = []
        self.peers: list[Socket] = []
        for _ in range(count):
            peer, socket = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
            peer.linger = socket.linger = 0
            socket.connect(f"tcp://127.0.0.1:{peer.bind_to_random_port('tcp://127.0.0.1')}")
            peer.send(b"hello")
            assert socket.recv() == b"hello"
            self.polled.append(socket)
            self.peers.append(peer)

    def close(self) -> None:
        for socket in (*self.polled, *self.peers):
            socket.close()


@pytest.fixture
def context() -> Iterator[Context]:
    with zmq.Context() as made:
        yield made


@pytest.fixture
def poller() -> Iterator[Poller]:
    made = Poller()
    yield made
    made.close()


@pytest.fixture
def pairs(context: Context) -> Iterator[Pairs]:
    made = Pairs(context, 3)
    yield made
    made.close()


def polled(poller: Poller) -> list[tuple[Any, int]]:
    """The next events. A poll may return none before the timeout."""
    for _ in range(100):
        events = poller.poll(PATIENCE_S)
        if events:
            return events
    raise AssertionError("no event")


def test_a_message_is_an_event_until_it_is_read(poller: Poller, pairs: Pairs) -> None:
    for socket in pairs.polled:
        poller.register(socket)
    assert poller.poll(0) == []
    pairs.peers[1].send(b"1")
    pairs.peers[1].send(b"2")
    assert polled(poller) == [(pairs.polled[1], zmq.POLLIN)]
    assert pairs.polled[1].recv() == b"1"
    assert polled(poller) == [(pairs.polled[1], zmq.POLLIN)]
    assert pairs.polled[1].recv() == b"2"
    assert poller.poll(0) == []


def test_a_message_whose_signal_a_send_takes_is_an_event(poller: Poller, pairs: Pairs) -> None:
    socket, peer = pairs.polled[0], pairs.peers[0]
    poller.register(socket)
    assert poller.poll(0) == []
    peer.send(b"early")
    assert socket.poll(1000 * PATIENCE_S)  # this takes the signal, as a send may
    socket.send(b"out")
    poller.register(socket)
    assert poller.poll(PATIENCE_S) == [(socket, zmq.POLLIN)]


def test_a_connection_is_an_event_where_output_counts(poller: Poller, context: Context) -> None:
    with context.socket(zmq.DEALER) as server, context.socket(zmq.DEALER) as socket:
        server.linger = socket.linger = 0
        socket.immediate = True
        poller.register(socket, zmq.POLLIN | zmq.POLLOUT)
        assert poller.poll(0) == []
        socket.connect(f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}")
        assert polled(poller) == [(socket, zmq.POLLOUT)]
        poller.register(socket, zmq.POLLIN)
        assert poller.poll(0) == []
        server.send(b"")
        assert socket.poll(1000 * PATIENCE_S)
        poller.register(socket, zmq.POLLIN | zmq.POLLOUT)
        assert poller.poll(0) == [(socket, zmq.POLLIN | zmq.POLLOUT)]
        poller.unregister(socket)
        assert poller.poll(0) == []


def test_a_file_descriptor_is_polled_for_input(poller: Poller, pairs: Pairs) -> None:
    reader, writer = sockets_of_python.socketpair()
    with reader, writer:
        poller.register(reader.fileno())
        poller.register(pairs.polled[0])
        assert poller.poll(0) == []
        writer.send(b"x")
        pairs.peers[0].send(b"")
        assert pairs.polled[0].poll(1000 * PATIENCE_S)
        poller.register(pairs.polled[0])
        assert dict(polled(poller)) == {reader.fileno(): zmq.POLLIN, pairs.polled[0]: zmq.POLLIN}
        pairs.polled[0].recv()
        reader.recv(1)
        assert poller.poll(0) == []
        poller.unregister(reader.fileno())
        writer.send(b"x")
        assert poller.poll(0) == []


def test_no_event_is_lost_among_sends_and_partial_reads(poller: Poller, context: Context) -> None:
    rng = stream(0, Stream.LATENCY)
    pairs = Pairs(context, 20)
    for socket in pairs.polled:
        poller.register(socket)
    sent = received = 0
    for _ in range(300):
        for index in rng.integers(20, size=3).tolist():
            pairs.peers[index].send(b"")
            sent += 1
        for index in rng.integers(20, size=3).tolist():
            pairs.polled[index].send(b"")  # takes signals
            poller.register(pairs.polled[index])
        for socket, _ in polled(poller) if received < sent else ():
            for _ in range(int(rng.integers(1, 3))):
                received += len(socket.recv_multipart(zmq.NOBLOCK)) if socket.getsockopt(zmq.EVENTS) & 1 else 0
    while received < sent:
        for socket, _ in polled(poller):
            socket.recv()
            received += 1
    pairs.close()


class CountingSocket(zmq.Socket[bytes]):
    """Counts how often it is asked for its events."""

    asked = 0

    def getsockopt(self, option: int) -> Any:
        type(self).asked += option == zmq.EVENTS
        return super().getsockopt(option)


def test_idle_sockets_are_not_asked(poller: Poller, context: Context) -> None:
    idle = [CountingSocket(context, zmq.DEALER) for _ in range(200)]
    busy, peer = CountingSocket(context, zmq.PAIR), context.socket(zmq.PAIR)
    peer.bind("inproc://peer")
    busy.connect("inproc://peer")
    for socket in (*idle, busy):
        poller.register(socket)
    assert poller.poll(0) == []
    before = CountingSocket.asked
    for _ in range(10):
        peer.send(b"")
        assert polled(poller) == [(busy, zmq.POLLIN)]
        busy.recv()
    assert poller.poll(0) == []
    assert CountingSocket.asked - before <= 3 * 10 + 1
    for socket in (*idle, busy, peer):
        socket.close()
