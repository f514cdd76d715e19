"""`blackout`: for a time window no message is delivered."""

from itertools import permutations

import pytest

from support.toxics import dues_s, message, passage, toxic

DARK = {"type": "blackout", "start_s": 10.0, "end_s": 20.0}
FROZEN = {**DARK, "layer": "tcp"}


def latency(delay_s: float) -> dict[str, object]:
    return {"type": "latency", "delay": delay_s}


def test_a_message_that_enters_in_the_window_is_lost() -> None:
    flights = [message(sent_s=sent_s) for sent_s in (9.75, 10.0, 19.75, 20.0)]
    assert dues_s(passage(DARK), flights) == [[9.75], [], [], [20.0]]


@pytest.mark.parametrize("toxics", [*permutations((DARK, latency(1.0)))])
def test_a_message_that_exits_in_the_window_is_lost(toxics: tuple[dict[str, object], ...]) -> None:
    flights = [message(sent_s=sent_s) for sent_s in (8.75, 9.0, 9.75, 20.0)]
    assert dues_s(passage(*toxics), flights) == [[9.75], [], [], [21.0]]


def test_a_message_in_transit_during_the_whole_window_is_delivered() -> None:
    assert dues_s(passage(DARK, latency(11.0)), [message(sent_s=9.5)]) == [[20.5]]


def test_a_message_delayed_by_the_line_into_the_window_is_lost() -> None:
    # 2 s each: out at 9, and at 11.
    way = passage(DARK, {"type": "bandwidth", "bytes_per_s": 500.0})
    assert dues_s(way, [message(sent_s=7.0), message(sent_s=7.0)]) == [[9.0], []]


def test_a_blackout_repeats() -> None:
    way = passage({**DARK, "every_s": 30.0})
    lost = [at_s for at_s in range(0, 120, 5) if not way.send(message(sent_s=float(at_s)))]
    assert lost == [10, 15, 40, 45, 70, 75, 100, 105]


def test_on_tcp_bytes_that_enter_start_at_the_end_of_the_window() -> None:
    flights = [message(sent_s=sent_s) for sent_s in (9.75, 12.0, 20.0)]
    assert dues_s(passage(FROZEN), flights) == [[9.75], [20.0], [20.0]]
    assert dues_s(passage(FROZEN, latency(1.0)), [message(sent_s=12.0)]) == [[21.0]]
    assert dues_s(passage(latency(1.0), FROZEN), [message(sent_s=12.0)]) == [[21.0]]


def test_on_tcp_bytes_that_exit_wait_until_the_end_of_the_window() -> None:
    way = passage(FROZEN, latency(1.0))
    # A later message is delivered later.
    assert dues_s(way, [message(sent_s=9.5), message(sent_s=19.5), message(sent_s=19.75)]) == [[20.0], [21.0], [21.0]]


def test_on_tcp_delayed_bytes_take_their_time_after_the_window() -> None:
    # 2 s each, from 20 s on.
    way = passage(FROZEN, {"type": "bandwidth", "bytes_per_s": 500.0})
    assert dues_s(way, [message(sent_s=12.0), message(sent_s=13.0)]) == [[22.0], [24.0]]


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_on_tcp_one_blackout_delays_into_another(order: tuple[int, ...]) -> None:
    windows = [(10.0, 20.0), (18.0, 25.0), (24.0, 30.0)]
    toxics = [
        {
            "type": "blackout",
            "name": str(place),
            "start_s": windows[place][0],
            "end_s": windows[place][1],
            "layer": "tcp",
        }
        for place in order
    ]
    assert dues_s(passage(*toxics), [message(sent_s=12.0)]) == [[30.0]]


def test_a_blackout_applies_to_its_clients_only() -> None:
    way = passage(DARK, clients=frozenset((1,)))
    assert dues_s(way, [message(sent_s=12.0, client_id=client_id) for client_id in (0, 1)]) == [[12.0], []]


def test_with_a_toxicity_one_draw_decides_for_both_ends() -> None:
    way = passage({**DARK, "toxicity": 0.5}, latency(1.0))
    entering = [bool(way.send(message(number=number, sent_s=9.5))) for number in range(100)]
    inside = [bool(way.send(message(number=number, sent_s=12.0))) for number in range(100)]
    assert entering == inside
    assert 20 < sum(inside) < 80


def test_the_tcp_layer_is_below_messages() -> None:
    assert not toxic(**DARK).below_messages
    assert toxic(**FROZEN).below_messages
