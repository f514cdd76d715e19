"""Attempts to connect that the kernel drops, between real sockets at different addresses of loopback."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from ipaddress import ip_address

import pytest

from support.running import PATIENCE_S
from unstale.net import syn_filter
from unstale.net.connections import SITES_LIMITED_MAX, site_of

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
    with socket.socket() as one, suppress(TimeoutError):
        one.settimeout(timeout_s)
        one.bind((source, 0))
        one.connect(("127.0.0.1", listening.getsockname()[1]))
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


def verdict(shares: dict[str, float], packet: bytes, header_bytes: int) -> bool:
    """Whether the program lets a packet pass, executed here as the kernel does. Random numbers are 0."""
    instructions, at, value = syn_filter.program(shares), 0, 0
    while True:
        code, if_true, if_false, operand = instructions[at]
        at += 1
        if code in (syn_filter.LOAD_WORD, syn_filter.LOAD_BYTE):
            size = 4 if code == syn_filter.LOAD_WORD else 1
            start = operand - syn_filter.IP_HEADER if operand >= syn_filter.IP_HEADER else header_bytes + operand
            value = 0 if operand == syn_filter.RANDOM else int.from_bytes(packet[start : start + size], "big")
        elif code == syn_filter.AND:
            value &= operand
        elif code == syn_filter.SHIFT_RIGHT:
            value >>= operand
        elif code == syn_filter.JUMP:
            at += operand
        elif code == syn_filter.RETURN:
            return operand != 0
        else:
            holds = value == operand if code == syn_filter.JUMP_EQUAL else value >= operand
            at += if_true if holds else if_false


def packet_of_ipv6(source: str, flags: int) -> bytes:
    """A header of IPv6 (40 bytes) and one of TCP (20 bytes)."""
    return b"\x60" + bytes(7) + ip_address(source).packed + bytes(16) + bytes(13) + bytes([flags]) + bytes(6)


@pytest.mark.parametrize(
    ("source", "flags", "passes"),
    [
        ("2001:db8::7", 0x02, False),
        ("2001:db8::8:9", 0x02, False),  # the same first 64 bits
        ("2001:db8:0:1::7", 0x02, True),
        ("2001:db9::7", 0x02, True),
        ("2001:db8::7", 0x12, True),  # SYN and ACK
        ("2001:db8::7", 0x10, True),
    ],
)
def test_the_first_64_bits_of_an_address_of_ipv6_decide(source: str, flags: int, passes: bool) -> None:
    shares = {"127.0.0.2": 0.0, site_of("2001:db8:5::1"): 0.0, site_of("2001:db8::1"): 0.0}
    assert verdict(shares, packet_of_ipv6(source, flags), 40) is passes


def test_a_share_of_the_attempts_is_admitted(listening: socket.socket) -> None:
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
