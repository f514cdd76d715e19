"""`disconnect`: the connection breaks at a message."""

from dataclasses import replace

from support.toxics import message, passage


def test_the_connection_breaks_at_the_message() -> None:
    flight = message(sent_s=3.0)
    out = passage({"type": "disconnect", "down_s": 2.0}).send(flight)
    assert out == (replace(flight, cuts=True, down_s=2.0),)


def test_the_connection_breaks_at_the_time_of_delivery() -> None:
    (out,) = passage({"type": "latency", "delay": 1.5}, {"type": "disconnect"}).send(message(sent_s=3.0))
    assert out.cuts and out.due_s == 4.5


def test_a_message_sent_after_its_break_is_unchanged() -> None:
    way = passage({"type": "disconnect"}, {"type": "duplicate"}, {"type": "drop"})
    (out,) = way.send(message())
    assert out.cuts
    assert dict(way.counts.touched) == {"disconnect": 1}


def test_a_new_connection_starts_with_an_empty_line() -> None:
    way = passage({"type": "latency", "delay": 10.0, "messages": ["update"]})
    way.send(message(sent_s=0.0))
    way.forget_client(0)
    (out,) = way.send(message(sent_s=1.0, type="hello"))
    assert out.due_s == 1.0
