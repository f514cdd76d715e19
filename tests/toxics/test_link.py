"""The path of a message: through toxics in turn, then along a line that keeps order."""

from dataclasses import replace

import pytest

from support.toxics import DOWN, SEED, dues_s, message, passage, task, toxic, traffic
from unstale.toxics.in_flight import MESSAGE_TYPES, InFlightMessage
from unstale.toxics.link import Applied, ToxicLink

SECOND = {"type": "latency", "delay": 1.0}


def test_without_toxics_a_message_is_unchanged() -> None:
    way = passage()
    for _, flight in zip(range(100), traffic(), strict=False):
        assert way.send(flight) == (flight,)
    assert not way.counts.touched and way.toxics == ()


def test_toxics_apply_in_their_order() -> None:
    double = {"type": "slow", "factor": 2.0}
    assert dues_s(passage(SECOND, double), [message()]) == [[2.0]]
    assert dues_s(passage(double, SECOND), [message()]) == [[1.0]]


def test_a_lost_message_passes_no_further_toxic() -> None:
    way = passage({"type": "drop"}, SECOND)
    way.send(message())
    assert dict(way.counts.touched) == {"drop": 1}


def test_a_link_counts_the_messages_affected_by_each_toxic() -> None:
    way = passage({"type": "drop", "messages": ["heartbeat"]}, SECOND, {"type": "slow", "factor": 2.0})
    for flight in (message(), message(number=2), message(type="heartbeat"), task()):
        way.send(flight)
    assert dict(way.counts.touched) == {"drop": 1, "latency": 3, "slow": 2}


def test_a_message_affected_twice_by_a_toxic_counts_once() -> None:
    # The blackout affects it as it enters, at 1 s, and as it exits, at 2 + 9.5 s; both copies are lost.
    blackout = {"type": "blackout", "start_s": 0.0, "end_s": 2.0, "every_s": 10.0, "layer": "tcp"}
    way = passage(blackout, {"type": "latency", "delay": 9.5})
    (out,) = way.send(message(sent_s=1.0))
    assert (out.due_s, dict(way.counts.touched)) == (12.0, {"blackout": 1, "latency": 1})
    way.send(message(number=2, sent_s=1.0))
    assert dict(way.counts.touched) == {"blackout": 2, "latency": 2}
    way = passage({"type": "duplicate"}, {"type": "drop"})
    assert way.send(message()) == ()
    assert dict(way.counts.touched) == {"duplicate": 1, "drop": 1}


def test_a_change_applies_to_later_messages() -> None:
    way = passage({"type": "latency", "delay": 10.0})
    first = way.send(message(sent_s=0.0))
    way.change(())
    second = way.send(message(sent_s=1.0))
    # The line keeps its order: the second message does not overtake the first.
    assert [out.due_s for out in (*first, *second)] == [10.0, 10.0]


def test_setting_the_same_toxics_again_keeps_the_draws() -> None:
    settings = {"type": "latency", "delay": {"distribution": "exponential", "mean_s": 1.0}}
    once, twice = passage(settings), passage(settings)
    twice.change(twice.toxics)
    for number in range(20):
        assert once.send(message(number=number)) == twice.send(message(number=number))


def test_draws_depend_on_the_name_of_the_toxic_and_on_the_seed() -> None:
    settings = {"type": "latency", "delay": {"distribution": "exponential", "mean_s": 1.0}}
    dues = [
        passage({**settings, "name": "a"}).send(message()),
        passage({**settings, "name": "b"}).send(message()),
        passage({**settings, "name": "a"}, seed=SEED + 1).send(message()),
    ]
    assert len({out.due_s for (out,) in dues}) == 3


def test_a_forgotten_line_is_free_and_others_stay_busy() -> None:
    way = passage({"type": "bandwidth", "bytes_per_s": 100.0})
    dues_s(way, [message(client_id=client_id) for client_id in (0, 1)])
    way.forget_client(0)
    assert dues_s(way, [message(client_id=client_id, sent_s=1.0) for client_id in (0, 1)]) == [[11.0], [20.0]]


def test_the_order_of_different_lines_does_not_matter() -> None:
    toxics = [
        {"type": "drop", "toxicity": 0.2},
        {"type": "duplicate", "toxicity": 0.3, "after": {"distribution": "uniform", "high_s": 1.0}},
        {"type": "latency", "delay": {"distribution": "exponential", "mean_s": 1.0}},
        {"type": "bandwidth", "bytes_per_s": 2000.0},
        {"type": "reorder", "toxicity": 0.3, "delay": 0.5},
    ]
    flights = [flight for _, flight in zip(range(300), traffic(clients=6), strict=False)]
    by_line = sorted(flights, key=lambda one: (-one.client_id, one.direction))  # stable: a line keeps its order
    in_turn, line_by_line = passage(*toxics), passage(*toxics)
    expected = {flight.number: in_turn.send(flight) for flight in flights}
    assert {flight.number: line_by_line.send(flight) for flight in by_line} == expected


@pytest.mark.parametrize(
    ("settings", "flight", "is_touched"),
    [
        ({"direction": "up"}, message(), True),
        ({"direction": "up"}, message(direction=DOWN), False),
        ({"messages": ["task"]}, message(), False),
        ({"start_s": 5.0}, message(sent_s=4.75), False),
        ({"start_s": 5.0}, message(sent_s=5.0), True),
        ({"start_s": 5.0, "end_s": 6.0}, message(sent_s=5.75), True),
        ({"start_s": 5.0, "end_s": 6.0}, message(sent_s=6.0), False),
    ],
)
def test_a_toxic_affects_its_messages(settings: dict[str, object], flight: InFlightMessage, is_touched: bool) -> None:
    way = passage({"type": "drop", **settings})
    assert (way.send(flight) == ()) is is_touched


def test_a_toxic_applies_to_its_clients_only() -> None:
    way = ToxicLink([Applied(toxic(type="drop"), frozenset((2, 3)))], SEED)
    assert [len(way.send(message(client_id=client_id))) for client_id in range(5)] == [1, 1, 0, 0, 1]


@pytest.mark.parametrize("type_", MESSAGE_TYPES)
def test_messages_of_every_type_pass(type_: str) -> None:
    settings = {"type": "latency", "delay": {"distribution": "uniform", "high_s": 1.0}}
    flight = message(type=type_)
    (out,) = passage(settings).send(flight)
    assert 0 < out.due_s < 1 and out == replace(flight, due_s=out.due_s)
