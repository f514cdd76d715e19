"""Messages for a connection that takes no more for a moment. Source: PROTOCOL.md 4.3."""

from collections.abc import Sequence
from typing import Any

from support.played import PlayedWire
from unstale.gateway.transport import (
    KEEP_S,
    MESSAGES_MAX,
    PAUSE_S,
    ROUTE_MAX,
    ROUTE_PAYLOADS_MAX,
    BufferedTransport,
    Delivery,
)
from unstale_proto import codec
from unstale_proto.messages import Heartbeat

ROUTE = b"a"


class Played:
    """A patient wire over a played one."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.below = PlayedWire()
        self.transport = BufferedTransport(self.below, lambda: self.now_s)

    def say(self, number: int, route: bytes = ROUTE, *, payload: bool = False) -> Delivery:
        header = codec.encode(Heartbeat(number=number, version=0))
        return self.transport.send(route, header, [b"x"] if payload else ())

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.transport.flush()

    def heard(self, route: bytes = ROUTE) -> list[int]:
        messages = [message for message, _ in self.below.sent.pop(route, [])]
        return [message.number for message in messages if isinstance(message, Heartbeat)]


def test_buffered_messages_leave_in_order_and_before_later_ones() -> None:
    played = Played()
    played.below.full.add(ROUTE)
    assert [played.say(number) for number in range(3)] == [Delivery.SENT] * 3
    assert played.transport.due_s is not None
    played.below.full.clear()
    assert played.say(3) is Delivery.SENT
    assert played.heard() == []
    played.pass_time(1.0)
    assert played.heard() == [0, 1, 2, 3]
    assert played.transport.due_s is None
    played.say(4)
    assert played.heard() == [4]


def test_one_connection_delays_no_other() -> None:
    played = Played()
    played.below.full.add(ROUTE)
    played.say(0)
    played.say(1, b"b")
    assert played.heard(b"b") == [1]


def test_a_connection_that_accepts_nothing_is_closed_and_its_buffer_dropped() -> None:
    played = Played()
    played.below.full.add(ROUTE)
    played.say(0)
    played.pass_time(KEEP_S)
    assert played.say(1) is Delivery.FULL
    played.below.full.clear()
    played.pass_time(1.0)
    assert played.heard() == []


def test_a_closed_connection_costs_nothing() -> None:
    played = Played()
    played.below.full.add(ROUTE)
    played.say(0)
    played.below.gone.add(ROUTE)
    played.pass_time(1.0)
    assert played.transport.due_s is None
    assert played.say(1) is Delivery.GONE


def test_a_buffer_stays_within_its_bounds() -> None:
    played = Played()
    played.below.full.update({ROUTE, b"b"})
    assert all(played.say(number) is Delivery.SENT for number in range(ROUTE_MAX))
    assert played.say(0) is Delivery.FULL
    for _ in range(ROUTE_PAYLOADS_MAX):
        assert played.say(0, b"b", payload=True) is Delivery.SENT
    assert played.say(0, b"b", payload=True) is Delivery.FULL
    routes = [b"%d" % number for number in range(MESSAGES_MAX // ROUTE_MAX)]
    played.below.full.update({*routes, b"last"})
    for route in routes:
        assert all(played.say(number, route) is Delivery.SENT for number in range(ROUTE_MAX))
    assert played.say(0, b"last") is Delivery.FULL


def test_connections_are_tried_again_in_the_order_of_their_oldest_messages() -> None:
    played = Played()
    routes = [b"c", b"a", b"b"]
    played.below.full.update(routes)
    for number, route in enumerate(routes):
        played.say(number, route)
    played.pass_time(0.006)  # all are tried in vain, and wait longer
    played.below.full.clear()
    tried: list[bytes] = []
    send = played.below.send

    def record(route: bytes, header: bytes, frames: Sequence[Any] = ()) -> Delivery:
        tried.append(route)
        return send(route, header, frames)

    played.below.send = record  # type: ignore[method-assign]
    played.pass_time(1.0)
    assert tried == routes
    assert played.transport.due_s is None


def test_a_buffer_that_was_dropped_is_not_due_and_a_new_one_has_its_own_time() -> None:
    played = Played()
    played.below.full.add(ROUTE)
    played.say(0)
    played.now_s = KEEP_S
    assert played.say(1) is Delivery.FULL
    assert played.transport.due_s is None
    played.say(2)
    assert played.transport.due_s == KEEP_S + PAUSE_S
