"""libzmq after a handshake that fails, as the table of PROTOCOL.md 1 says: whether it connects again by itself."""

from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from support.running import PATIENCE_S, RunningServer, small
from unstale_client.net import sockets
from unstale_client.net.handshakes import MISMATCH, parsed
from unstale_client.net.keys import Identity
from wire_schema import section, table

pytestmark = pytest.mark.network

IdentityOf = Callable[[str], Identity]
ROWS = {row["cause"].partition(":")[0]: row["event of libzmq's monitor, value"] for row in table(section(1))}
CLOSED = "tcp://127.0.0.1:9"  # the port of the discard protocol
FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Watched:
    """A client's socket whose failed handshakes and further attempts to connect are events."""

    def __init__(self, address: str, identity: Identity | None) -> None:
        self.socket = sockets.dealer(zmq.Context.instance(), heartbeat_s=60.0, linger_s=0.0, identity=identity)
        self.monitor = self.socket.get_monitor_socket(FAILED | zmq.EVENT_CONNECT_RETRIED)
        self.socket.connect(address)

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()

    def event(self) -> tuple[int, int]:
        """Kind and value of the next event."""
        assert self.monitor.poll(PATIENCE_S * 1000)
        return parsed(self.monitor.recv_multipart())

    def is_retried(self) -> bool:
        """Whether libzmq connects again after the last event. It would plan that before any later work of its thread,
        such as to find out that nobody listens at another address.
        """
        with Watched(CLOSED, None) as later:
            assert later.event()[0] == zmq.EVENT_CONNECT_RETRIED
        return bool(self.monitor.poll(0)) and self.event()[0] == zmq.EVENT_CONNECT_RETRIED


@pytest.mark.parametrize(
    ("cause", "kind", "value", "retried"),
    [
        ("its key is not authorized, or was revoked", zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400, False),
        ("it has no key, and the server has", zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, MISMATCH, False),
        ("it has a key, and the server has none", zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, MISMATCH, False),
        ("it has the key of another server", zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, None, True),
    ],
)
def test_the_monitor_reports_the_cause_and_libzmq_connects_again_only_for_another_servers_key(
    cause: str, kind: int, value: int | None, retried: bool, folder: Path, identity_of: IdentityOf, stranger: Identity
) -> None:
    phone = identity_of("phone")
    identity = {
        "its key is not authorized, or was revoked": stranger,
        "it has no key, and the server has": None,
        "it has the key of another server": Identity(phone.public, phone.secret, identity_of("laptop").public),
    }.get(cause, phone)
    keyed = {} if cause == "it has a key, and the server has none" else {"keys": str(folder)}
    assert zmq.Event(kind).name.removeprefix("EVENT_") in ROWS[cause] and ("again" in ROWS[cause]) == retried
    settings = small(clients=3, min_clients=1, rounds=1000, server=keyed)
    with RunningServer(settings) as server, Watched(server.address, identity) as client:
        found = client.event()
        while found[0] != kind:  # the server has closed the connection before its greeting was read
            assert found[0] in (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_CONNECT_RETRIED)
            found = client.event()
        assert value in (None, found[1])
        assert client.is_retried() == retried
