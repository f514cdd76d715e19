"""Attempts to connect that the kernel drops, between real sockets at different addresses of loopback."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from support.running import PATIENCE_S
from unstale.net import syn_filter
from unstale.net.arrivals import SITES_LIMITED_MAX
from unstale.net.connections import site_of

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux drops attempts to connect by address"),
]

AT_ONCE = 400
AWHILE_S = 0.5  # before the first of its repetitions, a second after a dropped attempt


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("0.0.0.0", 0), backlog=AT_ONCE) as bound:
        yield bound


def connects(listening: socket.socket, source: str, timeout_s: float = PATIENCE_S) -> bool:
    """Whether a connection from an address is established in time."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    with socket.socket(family) as one, suppress(TimeoutError):
        one.settimeout(timeout_s)
        one.bind((source, 0))
        one.connect(("::1" if ":" in source else "127.0.0.1", listening.getsockname()[1]))
        return True
    return False


def test_all_attempts_of_one_address_are_dropped_and_none_of_others(listening: socket.socket) -> None:
    syn_filter.apply(listening.fileno(), {"127.0.0.2": 0.0, "127.0.0.4": 0.0, "20010db800000000::": 0.0})
    assert not connects(listening, "127.0.0.2", AWHILE_S)
    assert connects(listening, "127.0.0.3")
    assert not connects(listening, "127.0.0.4", AWHILE_S)
    syn_filter.apply(listening.fileno(), {"127.0.0.4": 0.0})
    assert connects(listening, "127.0.0.2")
    syn_filter.apply(listening.fileno(), {})
    assert connects(listening, "127.0.0.4")


def test_the_first_64_bits_of_an_address_of_ipv6_decide() -> None:
    try:
        listening = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listening:
        other = f"{1 << 32 | 7:x}::"
        syn_filter.apply(listening.fileno(), {other: 0.0, "127.0.0.2": 0.0})
        assert connects(listening, "::1")
        assert not connects(listening, "127.0.0.2", AWHILE_S)
        syn_filter.apply(listening.fileno(), {other: 0.0, site_of("::1"): 0.0})
        assert not connects(listening, "::1", AWHILE_S)
        assert connects(listening, "127.0.0.2")


def test_a_share_of_the_attempts_is_let_in(listening: socket.socket) -> None:
    syn_filter.apply(listening.fileno(), {"127.0.0.2": 0.25})
    with ExitStack() as stack:
        attempts = [stack.enter_context(socket.socket()) for _ in range(AT_ONCE)]
        for one in attempts:
            one.bind(("127.0.0.2", 0))
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", listening.getsockname()[1]))
        listening.settimeout(AWHILE_S)
        accepted = 0
        with suppress(TimeoutError):
            while True:
                stack.enter_context(listening.accept()[0])
                accepted += 1
    # 100 of 400 at first, 8.7 is the standard deviation; when accepting takes long, repetitions add a quarter of 300
    assert 100 - 6 * 8.7 < accepted < 175 + 6 * 8.7


def test_connections_that_are_open_are_not_concerned(listening: socket.socket) -> None:
    with ExitStack() as stack:
        for shares in ({}, {"127.0.0.3": 0.0}):
            syn_filter.apply(listening.fileno(), shares)
            theirs = stack.enter_context(socket.socket())
            theirs.bind(("127.0.0.2", 0))
            theirs.settimeout(PATIENCE_S)
            theirs.connect(("127.0.0.1", listening.getsockname()[1]))
            ours = stack.enter_context(listening.accept()[0])
            syn_filter.apply(listening.fileno(), {"127.0.0.2": 0.0})
            theirs.sendall(b"?" * 100_000)
            assert len(ours.recv(100_000, socket.MSG_WAITALL)) == 100_000
            syn_filter.apply(listening.fileno(), {})


def test_as_many_addresses_as_are_limited_at_most_fit_into_a_program(listening: socket.socket) -> None:
    shares = {site_of(f"2001:db8:{number:x}::1"): 0.0 for number in range(SITES_LIMITED_MAX - 1)}
    syn_filter.apply(listening.fileno(), {**shares, "127.0.0.2": 0.0})
    assert not connects(listening, "127.0.0.2", AWHILE_S)
    assert connects(listening, "127.0.0.1")


def test_a_descriptor_of_no_socket_is_an_error() -> None:
    with open(os.devnull) as file, pytest.raises(OSError, match="Socket operation on non-socket"):
        syn_filter.apply(file.fileno(), {"127.0.0.2": 0.0})
