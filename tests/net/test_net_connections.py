"""Which connections are cut, against numbers computed by hand."""

import pytest

from unstale.net.connections import (
    HANDSHAKE_BYTES,
    MEMORY,
    MESSAGE_TOO_LONG,
    STRANGER_BYTES_MAX,
    Arrivals,
    Connection,
    ConnectionLimits,
    ConnectionTable,
)

MESSAGE = 1_000_000
ALLOWED = MESSAGE + HANDSHAKE_BYTES  # of a client


class Connected:
    """A table, and connections that come from addresses. clients: routing ids that speak for a client."""

    def __init__(self, **limits: float) -> None:
        self.clients: set[bytes] = set()
        self.table = ConnectionTable(
            ConnectionLimits(**limits),  # type: ignore[arg-type]
            lambda route: route in self.clients,
            message_bytes_max=MESSAGE,
            arrivals=Arrivals(0.0),
        )
        self._fd = 100

    def come(self, address: str = "10.0.0.1", at_s: float = 0.0) -> Connection:
        self._fd += 1
        return self.table.accepted(self._fd, (address, 40_000 + self._fd), at_s)

    def client(self, address: str = "10.0.0.1") -> Connection:
        connection = self.come(address)
        route = b"\0%d" % connection.fd
        self.clients.add(route)
        self.table.heard(connection.fd, route)
        self.table.sampled(connection, 500, turn=0)
        assert connection.held_bytes == 0
        return connection


def test_over_the_cap_the_oldest_of_the_address_with_most_is_cut() -> None:
    connected = Connected(strangers_max=3)
    honest = connected.come("10.0.0.1")
    crowd = [connected.come("10.0.0.2") for _ in range(3)]
    assert connected.table.surplus() == crowd[:1]
    assert connected.table.surplus() == []
    assert (honest.reason, crowd[0].reason, connected.table.strangers) == (None, "too-many", 3)


def test_clients_count_against_no_cap_of_strangers() -> None:
    connected = Connected(strangers_max=1)
    clients = [connected.client() for _ in range(3)]
    assert connected.table.surplus() == []
    assert (connected.table.clients, connected.table.strangers) == (2, 1)  # as far as it had to look
    assert all(client.reason is None for client in clients)


def test_under_the_limit_of_descriptors_strangers_go_and_clients_stay() -> None:
    connected = Connected(strangers_max=10, connections_max=3)
    clients = [connected.client() for _ in range(2)]
    strangers = [connected.come() for _ in range(3)]
    assert connected.table.surplus() == strangers[:2]
    assert connected.client().reason is None
    assert connected.table.surplus() == strangers[2:]
    assert [client.reason for client in clients] == [None, None]


def test_addresses_of_one_ipv6_site_are_one() -> None:
    connected = Connected(strangers_max=2)
    first = connected.come("2001:db8::1")
    other = connected.come("2001:db8:0:1::1")
    connected.come("2001:db8::2")
    assert connected.table.surplus() == [first]
    assert other.reason is None
    assert connected.come("::ffff:10.0.0.1").site == connected.come("10.0.0.1").site


def test_a_stranger_may_send_a_hello_and_no_more() -> None:
    connected = Connected()
    stranger = connected.come()
    assert connected.table.sampled(stranger, STRANGER_BYTES_MAX, turn=0) is None
    assert connected.table.sampled(stranger, STRANGER_BYTES_MAX + 1, turn=0) is None  # two hellos, unread
    assert connected.table.suspects == [stranger]
    assert connected.table.sampled(stranger, STRANGER_BYTES_MAX + 1, turn=0) is None
    assert connected.table.sampled(stranger, STRANGER_BYTES_MAX + 1, turn=1) == MESSAGE_TOO_LONG


def test_a_stranger_that_sends_far_more_is_cut_although_nothing_was_read_since() -> None:
    connected = Connected()
    stranger = connected.come()
    assert connected.table.sampled(stranger, 2 * STRANGER_BYTES_MAX, turn=0) is None
    assert connected.table.sampled(stranger, 2 * STRANGER_BYTES_MAX + 1, turn=0) == MESSAGE_TOO_LONG


def test_a_client_may_send_as_many_messages_ahead_as_are_read_ahead() -> None:
    connected = Connected(messages_ahead=8)
    client = connected.client()
    assert connected.table.sampled(client, 500 + 9 * ALLOWED, turn=0) is None
    assert connected.table.sampled(client, 501 + 9 * ALLOWED, turn=0) == MESSAGE_TOO_LONG


def test_bytes_read_count_from_the_last_forwarded_message() -> None:
    connected = Connected()
    client = connected.client()
    for number in range(1, 20):
        assert connected.table.sampled(client, 500 + number * ALLOWED, turn=number) is None
        assert client.held_bytes == ALLOWED
        assert client.route is not None
        connected.table.heard(client.fd, client.route)
        assert connected.table.sampled(client, 500 + number * ALLOWED, turn=number) is None
        assert connected.table.held_bytes == 0
    assert connected.table.sampled(client, 501 + 20 * ALLOWED, turn=20) is None
    assert connected.table.sampled(client, 501 + 20 * ALLOWED, turn=21) == MESSAGE_TOO_LONG


def test_over_the_bound_of_all_together_the_largest_is_cut() -> None:
    connected = Connected(unread_bytes_max=1_000)
    small, large = connected.client(), connected.client()
    connected.table.sampled(small, 500 + 400, turn=0)
    connected.table.sampled(large, 500 + 600, turn=0)
    assert connected.table.excess() is None
    connected.table.sampled(small, 500 + 401, turn=0)
    assert connected.table.excess() is large
    connected.table.cut(large, MEMORY)
    assert connected.table.held_bytes == 401
    assert connected.table.excess() is None
    assert connected.table.largest() is small
    connected.table.closed(large.fd)
    assert (len(connected.table), connected.table.held_bytes) == (1, 401)


def test_a_connection_without_a_hello_in_time_is_cut_and_a_client_that_left_gets_that_time_again() -> None:
    connected = Connected(hello_s=10.0)
    silent, client = connected.come(at_s=0.0), connected.client()
    assert connected.table.sweep(10.0, read_s=10.0) == []
    assert connected.table.clients == 1
    assert connected.table.sweep(12.0, read_s=10.0) == []  # its messages may be unread yet
    assert connected.table.sweep(12.0, read_s=10.1) == [silent]
    connected.clients.clear()
    connected.table.cut(silent, "no-hello")
    assert connected.table.sweep(22.0, read_s=22.0) == []  # it was a client at 12
    assert connected.table.strangers == 1
    assert connected.table.sweep(22.1, read_s=22.1) == [client]


def test_a_message_may_be_read_before_its_connection_is_known() -> None:
    connected = Connected(strangers_max=0)
    connected.clients.add(b"\0one")
    connected.table.heard(101, b"\0one")
    connected.come()
    assert connected.table.surplus() == []


def test_a_descriptor_that_is_used_again_is_another_connection() -> None:
    connected = Connected()
    client = connected.client()
    connected.table.accepted(client.fd, ("10.0.0.9", 1), 5.0)
    again = connected.table.get(client.fd)
    assert again is not None
    assert (again.route, again.messages, again.since_s) == (None, 0, 5.0)
    assert len(connected.table) == 1
    connected.table.cut(client, "no-hello")  # the one that has ended
    assert again.reason is None


@pytest.mark.parametrize("reason", ["too-many", "no-hello"])
def test_a_connection_that_was_cut_counts_no_more(reason: str) -> None:
    connected = Connected(strangers_max=1, connections_max=1)
    connected.table.cut(connected.come(), reason)
    connected.come()
    assert connected.table.surplus() == []
    assert (len(connected.table), connected.table.strangers, connected.table.clients) == (2, 1, 0)
