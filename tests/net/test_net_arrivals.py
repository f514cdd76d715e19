"""Which share of an address' attempts to connect is let in, against numbers computed by hand."""

import pytest

from unstale.net.connections import (
    GROWTH,
    SHARE_MIN,
    SITES_LIMITED_MAX,
    SITES_MAX,
    WASTED_AT_ONCE,
    WASTED_PER_S,
    Arrivals,
)


def waste(arrivals: Arrivals, count: float, site: str = "10.0.0.1") -> None:
    for _ in range(int(count)):
        arrivals.wasted(site)


def test_an_address_may_waste_some_connections_at_once_and_some_a_second() -> None:
    arrivals = Arrivals(0.0)
    waste(arrivals, WASTED_AT_ONCE)
    assert arrivals.look(1.0) == {}
    for second in range(2, 60):
        waste(arrivals, WASTED_PER_S)
        assert arrivals.look(float(second)) == {}


def test_above_that_the_share_is_what_brings_the_rate_to_its_bound() -> None:
    arrivals = Arrivals(0.0)
    waste(arrivals, WASTED_AT_ONCE + 8 * WASTED_PER_S)  # 256 + 128 = 384, in one second
    shares = arrivals.look(1.0)
    assert shares == {"10.0.0.1": pytest.approx(1 / 16)}  # 16 / 384 would be less
    waste(arrivals, 4 * WASTED_PER_S)
    assert arrivals.look(2.0) == {"10.0.0.1": pytest.approx(1 / 64)}
    waste(arrivals, 1000)
    assert arrivals.look(3.0) == {"10.0.0.1": pytest.approx(1 / 1024)}
    waste(arrivals, 1000)
    assert arrivals.look(4.0) == {"10.0.0.1": SHARE_MIN}


def test_the_share_grows_back_when_little_is_wasted() -> None:
    arrivals = Arrivals(0.0)
    waste(arrivals, 2 * WASTED_AT_ONCE)
    [share] = arrivals.look(1.0).values()
    looks = 1
    while shares := arrivals.look(1.0 + looks):
        share *= GROWTH
        assert shares == {"10.0.0.1": pytest.approx(share)}
        looks += 1
    assert looks == 13  # 1/16 of 1.25 ** 12 is 0.91, one more is over 1


def test_addresses_are_limited_each_for_itself_and_those_that_waste_most_first() -> None:
    arrivals = Arrivals(0.0)
    for number in range(SITES_LIMITED_MAX + 2):
        waste(arrivals, 500 + number, f"10.0.1.{number}")
    waste(arrivals, 3, "10.0.2.1")
    shares = arrivals.look(64.0)  # 512 / 64 s is half the rate, 500 as much less
    assert shares == {}
    for number in range(SITES_LIMITED_MAX + 2):
        waste(arrivals, 500 + number, f"10.0.1.{number}")
    shares = arrivals.look(74.0)
    assert len(shares) == SITES_LIMITED_MAX
    assert "10.0.1.0" not in shares
    assert "10.0.1.1" not in shares
    assert shares["10.0.1.129"] == pytest.approx(160 / 629)


def test_memory_of_addresses_is_bounded() -> None:
    arrivals = Arrivals(0.0)
    for number in range(SITES_MAX + 10):
        arrivals.wasted(str(number))
    assert len(arrivals._sites) == SITES_MAX
    assert arrivals.look(1.0) == {}
    arrivals.look(60.0)
    assert len(arrivals._sites) == 0
