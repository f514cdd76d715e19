"""`drop`: messages are lost."""

from support.toxics import draws, dues_s, message, passage


def test_every_message_is_lost() -> None:
    assert dues_s(passage({"type": "drop"}), [message(), message(type="heartbeat")]) == [[], []]


def test_the_toxicity_is_the_probability() -> None:
    way = passage({"type": "drop", "toxicity": 0.2})
    lost = draws(name="drop")
    for number in range(100):
        flight = message(number=number)
        assert (way.send(flight) == ()) == lost.selects(0.2, flight)


def test_a_resent_message_gets_another_draw() -> None:
    way = passage({"type": "drop", "toxicity": 0.5})
    outcomes = {len(way.send(message(attempt=attempt))) for attempt in range(20)}
    assert outcomes == {0, 1}


def test_only_the_named_messages_are_lost() -> None:
    way = passage({"type": "drop", "messages": ["task", "ack"], "direction": "down"})
    assert dues_s(way, [message(), message(type="ack", direction="down"), message(type="heartbeat")]) == [[0], [], [0]]
