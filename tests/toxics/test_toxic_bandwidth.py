"""`bandwidth`: a line carries a bounded number of bytes per second, one message after the other."""

from support.toxics import DOWN, UP, dues_s, message, passage, toxic

SLOW_LINE = {"type": "bandwidth", "bytes_per_s": 500.0}


def test_two_messages_of_1000_bytes_on_500_bytes_a_second() -> None:
    # 0 + 2 = 2; the second begins when the first is through: 2 + 2 = 4; the third finds the line free: 10 + 2 = 12.
    flights = [message(sent_s=sent_s) for sent_s in (0.0, 1.0, 10.0)]
    assert dues_s(passage(SLOW_LINE), flights) == [[2.0], [4.0], [12.0]]


def test_a_large_message_takes_longer() -> None:
    assert dues_s(passage(SLOW_LINE), [message(size_bytes=250), message(size_bytes=4000)]) == [[0.5], [8.5]]


def test_clients_and_directions_have_lines_of_their_own() -> None:
    flights = [message(direction=UP), message(direction=DOWN), message(client_id=1)]
    assert dues_s(passage(SLOW_LINE), flights) == [[2.0], [2.0], [2.0]]


def test_latency_and_bandwidth_together() -> None:
    # Both reach the slower link 1 s after they were sent: 1 + 2 = 3, and max(1.5, 3) + 2 = 5. In either order.
    latency = {"type": "latency", "delay": 1.0}
    flights = [message(sent_s=0.0), message(sent_s=0.5)]
    assert dues_s(passage(latency, SLOW_LINE), flights) == [[3.0], [5.0]]
    assert dues_s(passage(SLOW_LINE, latency), flights) == [[3.0], [5.0]]


def test_a_message_passes_two_bandwidths_in_turn() -> None:
    # 1000/500 + 1000/1000 = 3
    way = passage(SLOW_LINE, {"type": "bandwidth", "name": "wider", "bytes_per_s": 1000.0})
    assert dues_s(way, [message()]) == [[3.0]]


def test_a_lost_message_uses_no_bandwidth() -> None:
    way = passage({"type": "drop", "messages": ["heartbeat"]}, SLOW_LINE)
    assert dues_s(way, [message(type="heartbeat"), message()]) == [[], [2.0]]


def test_the_tcp_layer_is_below_messages() -> None:
    assert not toxic(**SLOW_LINE).below_messages
    assert toxic(**SLOW_LINE, layer="tcp").below_messages
