"""How many log lines a peer may cause, by the time that the records have."""

import logging

from unstale.log_rate_limit import PEER_LINES, TOTAL_LINES, PeerRateLimit, about_peer, logger


def record(peer: object, at_s: float, text: str = "client %d: no") -> logging.LogRecord:
    made = logging.LogRecord("unstale.server", logging.WARNING, __file__, 1, text, (7,), None)
    made.created = at_s
    if peer is not None:
        made.__dict__.update(about_peer(peer))
    return made


def test_a_peer_has_a_few_lines_at_once_and_then_one_in_ten_seconds() -> None:
    limit = PeerRateLimit()
    assert [limit.filter(record(7, 1000.0)) for _ in range(PEER_LINES + 2)] == [True] * PEER_LINES + [False] * 2
    assert not limit.filter(record(7, 1009.9))
    later = record(7, 1010.0)
    assert limit.filter(later)
    assert later.getMessage() == "client 7: no (3 lines were left out before, about clients)"
    assert not limit.filter(record(7, 1010.0))


def test_another_peer_has_lines_of_its_own_until_all_together_have_too_many() -> None:
    limit = PeerRateLimit()
    written = sum(limit.filter(record(peer, 1000.0)) for peer in range(TOTAL_LINES) for _ in range(2))
    assert written == TOTAL_LINES
    assert [limit.filter(record(peer, 1001.0)) for peer in range(5000, 5012)] == [True] * 10 + [False] * 2


def test_lines_about_no_peer_all_pass() -> None:
    limit = PeerRateLimit()
    made = [record(None, 1000.0) for _ in range(3 * TOTAL_LINES)]
    assert all(map(limit.filter, made))
    assert made[-1].getMessage() == "client 7: no"


def test_a_clock_that_is_set_back_silences_no_peer() -> None:
    limit = PeerRateLimit()
    for _ in range(PEER_LINES):
        limit.filter(record(7, 1000.0))
    assert not limit.filter(record(7, 10.0))
    assert limit.filter(record(7, 20.0))


def test_loggers_share_one_filter() -> None:
    first, second = logger("unstale.server"), logger("unstale.keys")
    assert [one for one in first.filters if isinstance(one, PeerRateLimit)] == [
        one for one in second.filters if isinstance(one, PeerRateLimit)
    ]
    assert len(logger("unstale.server").filters) == len(first.filters) == 1
