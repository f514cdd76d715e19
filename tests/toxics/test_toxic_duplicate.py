"""`duplicate`: messages are delivered more than once."""

from dataclasses import replace

from support.toxics import dues_s, message, passage


def test_a_message_and_two_copies() -> None:
    flight = message(sent_s=3.0)
    out = passage({"type": "duplicate", "copies": 2}).send(flight)
    assert out == (flight, replace(flight, copy=1), replace(flight, copy=2))


def test_a_late_copy_delays_no_other_message() -> None:
    way = passage({"type": "duplicate", "after": 5.0, "messages": ["update"]})
    assert dues_s(way, [message(sent_s=0.0), message(sent_s=1.0, type="heartbeat")]) == [[0.0, 5.0], [1.0]]


def test_each_copy_draws_how_late_it_is() -> None:
    way = passage({"type": "duplicate", "copies": 3, "after": {"distribution": "uniform", "high_s": 1.0}})
    assert len({out.due_s for out in way.send(message())}) == 4


def test_copies_use_time_on_the_line() -> None:
    # 1000 bytes on 500 bytes a second, twice.
    way = passage({"type": "duplicate"}, {"type": "bandwidth", "bytes_per_s": 500.0})
    assert dues_s(way, [message()]) == [[2.0, 4.0]]


def test_a_copy_has_draws_of_its_own() -> None:
    way = passage({"type": "duplicate"}, {"type": "drop", "toxicity": 0.5})
    arrived = {tuple(out.copy for out in way.send(message(number=number))) for number in range(50)}
    assert arrived == {(), (0,), (1,), (0, 1)}


def test_copies_of_copies_have_numbers_of_their_own() -> None:
    way = passage({"type": "duplicate"}, {"type": "duplicate", "name": "again", "copies": 2})
    copies = [out.copy for out in way.send(message())]
    assert len(copies) == 6
    assert sorted(copies) == [0, 1, 2, 3, 4, 5]
