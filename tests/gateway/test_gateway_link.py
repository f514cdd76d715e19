"""The link between a server and a gateway, and the ring of shared memory."""

import os
import socket
from collections import deque
from collections.abc import Iterator

import pytest

from unstale.gateway.link import BUFFER_BYTES, Link, LinkEndedError, RingWriter, mapped, shared_file
from unstale.seeds import Stream, stream


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    one, other = (Link(each) for each in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def test_values_arrive_in_order_each_with_its_descriptor(ends: tuple[Link, Link]) -> None:
    one, other = ends
    for number in range(3):
        file = shared_file(8)
        mapped(file, 8)[:] = bytes([number]) * 8
        one.post(("plain", number))
        one.post(("file", number), file)
        os.close(file)
    one.flush()
    received: list[tuple[str, int]] = []
    while len(received) < 6:
        for kind, number in other.receive():
            if kind == "file":
                file = other.take_descriptor()
                assert bytes(mapped(file, 8)) == bytes([number]) * 8
                os.close(file)
            received.append((kind, number))
    assert received == [(kind, number) for number in range(3) for kind in ("plain", "file")]


def test_more_than_the_socket_takes_waits_until_it_is_read(ends: tuple[Link, Link]) -> None:
    one, other = ends
    values = [(number, bytes([number]) * (BUFFER_BYTES // 2)) for number in range(8)]
    for value in values:
        one.post(value)
    one.flush()
    assert one.waits
    received: list[object] = []
    while len(received) < len(values):
        received.extend(other.receive())
        one.flush()
    assert received == values
    assert not one.waits


def test_what_was_sent_before_the_end_is_received_before_it(ends: tuple[Link, Link]) -> None:
    one, other = ends
    one.post((1,))
    one.flush()
    one.close()
    assert list(other.receive()) == [(1,)]
    with pytest.raises(LinkEndedError):
        list(other.receive())
    other.post((2,))
    with pytest.raises(LinkEndedError):
        other.flush()


@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_the_ring_that_are_not_released_do_not_overlap(seed: int) -> None:
    draws = stream(seed, Stream.TOXICS)
    size = int(draws.integers(20, 200))
    ring = RingWriter(size)
    pieces: deque[tuple[int, int, int]] = deque()
    refused = 0
    for _ in range(500):
        length = int(draws.integers(1, size // 2 + 1))
        piece = ring.allocate(length)
        if piece is None:
            refused += 1
            assert pieces, "an empty ring has room for half of its size"
            ring.release(pieces.popleft()[2])
            continue
        position, end = piece
        assert 0 <= position <= size - length
        assert all(position + length <= other or other + its_length <= position for other, its_length, _ in pieces)
        pieces.append((position, length, end))
        if draws.random() < 0.3:
            ring.release(pieces.popleft()[2])
    assert refused
