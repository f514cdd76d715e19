"""`reorder`: messages that others overtake."""

from support.toxics import dues_s, message, passage

HELD = {"type": "reorder", "delay": 3.0, "messages": ["update"]}


def test_a_delayed_message_is_overtaken() -> None:
    flights = [message(sent_s=0.0), message(sent_s=1.0, type="heartbeat")]
    assert dues_s(passage(HELD), flights) == [[3.0], [1.0]]


def test_a_message_overtakes_one_with_a_longer_delay() -> None:
    # The heartbeat takes 10 s; a later update takes 3 s, and does not wait for it.
    late = {"type": "latency", "delay": 10.0, "messages": ["heartbeat"]}
    flights = [message(sent_s=0.0, type="heartbeat"), message(sent_s=1.0), message(sent_s=2.0, type="bye")]
    assert dues_s(passage(late, HELD), flights) == [[10.0], [4.0], [10.0]]


def test_messages_of_one_delay_stay_in_order() -> None:
    flights = [message(number=number, sent_s=float(number)) for number in range(3)]
    assert dues_s(passage(HELD), flights) == [[3.0], [4.0], [5.0]]


def test_a_reordered_message_waits_for_the_line() -> None:
    # 2 s each on the line: the update is delayed until 3 s, and the line is free at 2 s: 3 + 2 = 5.
    way = passage(HELD, {"type": "bandwidth", "bytes_per_s": 500.0})
    assert dues_s(way, [message(type="heartbeat"), message()]) == [[2.0], [5.0]]
