"""`slow`: the round trip of an update takes a multiple of its time."""

import pytest

from support.toxics import dues_s, message, passage, task

HALF = {"type": "slow", "factor": 2.0}
ONE_SECOND = {"type": "latency", "delay": 1.0}


def test_the_round_trip_takes_twice_as_long() -> None:
    # Its task was sent at 2 s, and it arrives at 5 s: 2 + 2 (5 - 2) = 8.
    assert dues_s(passage(HALF), [message(began_s=2.0, sent_s=5.0)]) == [[8.0]]


def test_a_preceding_delay_is_slowed_down() -> None:
    # 2 + 2 (5 + 1 - 2) = 10; and 2 + 2 (5 - 2) + 1 = 9.
    flight = message(began_s=2.0, sent_s=5.0)
    assert dues_s(passage(ONE_SECOND, HALF), [flight]) == [[10.0]]
    assert dues_s(passage(HALF, ONE_SECOND), [flight]) == [[9.0]]


def test_other_messages_are_unchanged() -> None:
    flights = [task(began_s=0.0, sent_s=1.0), message(type="heartbeat", began_s=0.0, sent_s=1.0)]
    assert dues_s(passage(HALF), flights) == [[1.0], [1.0]]


@pytest.mark.parametrize("factor", [1.5, 4.0])
def test_slow_divides_the_frequency_of_a_busy_client_by_its_factor(factor: float) -> None:
    # docs/methods/heterogeneity.md#slow-clients: a factor of 2 is a frequency of 50 %.
    way = passage({"type": "slow", "factor": factor})
    now_s = 0.0
    for number in range(8):
        (out,) = way.send(message(number=number, began_s=now_s, sent_s=now_s + 0.5))
        now_s = out.due_s
    assert now_s == 8 * 0.5 * factor
