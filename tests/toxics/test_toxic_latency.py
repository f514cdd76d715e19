"""`latency`: messages take longer, and keep their order."""

from support.toxics import DOWN, UP, dues_s, message, passage
from unstale.seeds import Stream, stream

TURNS = {"distribution": "trace", "values_s": [3.0, 1.0]}


def test_a_constant_is_added_to_every_message() -> None:
    way = passage({"type": "latency", "delay": 0.25})
    assert dues_s(way, [message(sent_s=1.0), message(sent_s=2.0, direction=DOWN)]) == [[1.25], [2.25]]


def test_a_message_waits_for_the_one_before_it() -> None:
    # 0 + 3 = 3; 1 + 1 = 2, but the first comes out at 3; 5 + 3 = 8.
    flights = [message(number=number, sent_s=sent_s) for number, sent_s in enumerate((0.0, 1.0, 5.0))]
    assert dues_s(passage({"type": "latency", "delay": TURNS}), flights) == [[3.0], [3.0], [8.0]]


def test_clients_and_directions_do_not_wait_for_each_other() -> None:
    flights = [
        message(number=0, client_id=0, direction=UP),
        message(number=1, client_id=0, direction=DOWN),
        message(number=1, client_id=1, direction=UP),
    ]
    assert dues_s(passage({"type": "latency", "delay": TURNS}), flights) == [[3.0], [1.0], [1.0]]


def test_a_random_delay_is_the_running_maximum_of_the_draws() -> None:
    settings = {"type": "latency", "delay": {"distribution": "exponential", "mean_s": 2.0}}
    flights = [message(number=number, sent_s=number / 10) for number in range(200)]
    alone = [passage(settings).send(flight)[0].due_s for flight in flights]
    assert dues_s(passage(settings), flights) == [[max(alone[: place + 1])] for place in range(200)]


def test_delays_differ_between_messages_and_seeds() -> None:
    settings = {"type": "latency", "delay": {"distribution": "uniform", "high_s": 1.0}}
    drawn = {
        passage(settings, seed=seed).send(message(number=number, attempt=attempt, client_id=client_id))[0].due_s
        for seed in (1, 2)
        for number in (1, 2)
        for attempt in (0, 1)
        for client_id in (0, 1)
    }
    assert len(drawn) == 16


def test_a_trace_is_read_at_the_time_of_sending() -> None:
    delay = {"distribution": "trace", "steps_s": [[0.0, 0.5], [10.0, 2.0]]}
    flights = [message(sent_s=sent_s) for sent_s in (0.0, 9.0, 10.0, 19.0, 22.0)]
    expected = [[0.5], [9.5], [12.0], [21.0], [22.5]]
    assert dues_s(passage({"type": "latency", "delay": delay}), flights) == expected


def test_latencies_add_up() -> None:
    rng = stream(0, Stream.TOXICS)
    first, second = float(rng.random()), float(rng.random())
    way = passage({"type": "latency", "delay": first}, {"type": "latency", "name": "more", "delay": second})
    assert dues_s(way, [message()]) == [[first + second]]
