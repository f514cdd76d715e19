"""Options of the sockets reach libzmq, and an unusable address raises a UserError of one sentence."""

import socket as plain
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from unstale.errors import UserError
from unstale_client.net import sockets
from unstale_proto import limits

pytestmark = pytest.mark.network

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def context() -> Iterator[Context]:
    """A context whose sockets are closed after the test, so that no test has to."""
    kept = []

    class Keeping(zmq.Context[zmq.Socket[bytes]]):
        def socket(self, *arguments: Any, **options: Any) -> Any:
            kept.append(super().socket(*arguments, **options))
            return kept[-1]

    made = Keeping()
    yield made
    for socket in kept:
        socket.close(linger=0)
    made.term()


@pytest.mark.parametrize(
    ("make", "ping_ms"), [(sockets.router, 0), (sockets.dealer, 1500)]
)  # a router's own pings abort libzmq 4.3.5 when a peer vanishes with its queue full
def test_options_of_both_kinds_are_set(make: object, ping_ms: int, context: Context) -> None:
    socket = make(context, heartbeat_s=1.5, linger_s=0.25)  # type: ignore[operator]
    expected = {
        zmq.LINGER: 250,
        zmq.MAXMSGSIZE: limits.FRAME_BYTES_MAX,
        zmq.SNDHWM: sockets.SEND_QUEUE,
        zmq.RCVHWM: sockets.RECEIVE_QUEUE,
        zmq.HEARTBEAT_IVL: ping_ms,
        zmq.HEARTBEAT_TIMEOUT: 32_000,  # one frame of 4 MiB at 1 Mbit/s
        zmq.HEARTBEAT_TTL: 32_000,
        zmq.TCP_KEEPALIVE: 1,
    }
    assert {option: socket.getsockopt(option) for option in expected} == expected


def test_dealers_reconnect_at_times_of_their_own(context: Context) -> None:
    dealers = [sockets.dealer(context, heartbeat_s=1, linger_s=0) for _ in range(50)]
    for option, longest_s in (
        (zmq.RECONNECT_IVL, sockets.RECONNECT_S),
        (zmq.RECONNECT_IVL_MAX, sockets.RECONNECT_S_MAX),
    ):
        waits_s = {socket.getsockopt(option) / 1000 for socket in dealers}
        assert longest_s / 2 <= min(waits_s) < max(waits_s) <= longest_s
    for socket in dealers:
        socket.close()


@pytest.mark.parametrize(
    ("heartbeat_s", "connections", "ping_s"),
    [(2.0, 1, 2.0), (2.0, 500, 2.0), (2.0, 1000, 4.0), (30.0, 1000, 30.0), (2.0, 10_000, 16.0)],
)
def test_the_pings_of_a_process_are_bounded(heartbeat_s: float, connections: int, ping_s: float) -> None:
    assert sockets.ping_s(heartbeat_s, connections) == ping_s


def test_a_router_reports_an_absent_peer_and_refuses_takeovers(context: Context) -> None:
    router = sockets.router(context, heartbeat_s=1, linger_s=0)
    assert router.type == zmq.ROUTER
    assert router.getsockopt(zmq.BACKLOG) == sockets.BACKLOG
    sockets.bind(router, "tcp://127.0.0.1:*")
    with pytest.raises(zmq.ZMQError) as refused:  # ROUTER_MANDATORY, which cannot be read back
        router.send_multipart([b"\0nobody", b"hello"])
    assert refused.value.errno == zmq.EHOSTUNREACH


def test_a_routing_id_in_use_is_not_reassigned(context: Context) -> None:
    # ROUTER_HANDOVER off: the first connection under an id keeps it, and the second one is unbound.
    router = sockets.router(context, heartbeat_s=60, linger_s=0)
    address = sockets.bind(router, "tcp://127.0.0.1:*")
    honest, thief = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    for socket in (honest, thief):
        socket.setsockopt(zmq.ROUTING_ID, b"same")
        socket.connect(address)
        socket.send(b"first" if socket is honest else b"second")
        if socket is honest:
            assert router.poll(20_000)
            assert router.recv_multipart() == [b"same", b"first"]
    fence = context.socket(zmq.DEALER)  # its message is there only once the thief has had its chance
    fence.connect(address)
    fence.send(b"fence")
    assert router.poll(20_000)
    assert router.recv_multipart()[1] == b"fence"
    router.send_multipart([b"same", b"for the honest one"])
    assert honest.poll(20_000)
    assert honest.recv() == b"for the honest one"


def test_a_dealer_queues_nothing_for_a_server_that_is_not_there(context: Context) -> None:
    dealer = sockets.dealer(context, heartbeat_s=1, linger_s=0)
    assert dealer.type == zmq.DEALER
    assert dealer.getsockopt(zmq.IMMEDIATE) == 1
    sockets.connect(dealer, "tcp://127.0.0.1:1")
    with pytest.raises(zmq.Again):
        dealer.send(b"hello", zmq.NOBLOCK)


@pytest.mark.parametrize("heartbeat_s", [2.0, 6000.0, 7 * 24 * 3600.0])
def test_every_heartbeat_that_the_settings_allow_is_one_that_zeromq_takes(heartbeat_s: float, context: Context) -> None:
    socket = sockets.dealer(context, heartbeat_s=heartbeat_s, linger_s=0)
    # HEARTBEAT_TTL is 16 bits of tenths of a second: 6553.5 s at most.
    assert socket.getsockopt(zmq.HEARTBEAT_TTL) == min(max(3 * heartbeat_s, 32), 6553) * 1000


@pytest.mark.parametrize("version", [(4, 3, 1), (4, 2, 9), (3, 9, 9)])
def test_an_old_libzmq_is_refused(version: tuple[int, int, int]) -> None:
    with pytest.raises(UserError, match=r"^libzmq \d\.\d\.\d is too old, expected 4\.3\.2 or later; upgrade"):
        sockets.require_libzmq(version)


@pytest.mark.parametrize("version", [(4, 3, 2), (4, 4, 0), (5, 0, 0), None])
def test_a_libzmq_that_is_new_enough_is_accepted(version: tuple[int, int, int] | None) -> None:
    sockets.require_libzmq(version)


def test_bind_returns_the_port(context: Context) -> None:
    for any_port in ("tcp://127.0.0.1:*", "tcp://127.0.0.1:0"):
        address = sockets.bind(sockets.router(context, heartbeat_s=1, linger_s=0), any_port)
        host, _, port = address.rpartition(":")
        assert host == "tcp://127.0.0.1"
        assert int(port) > 0


def test_the_error_names_a_port_in_use(context: Context) -> None:
    with plain.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError, match=f"^server.address {address} is in use; stop the program that uses it"):
            sockets.bind(sockets.router(context, heartbeat_s=1, linger_s=0), address)


def test_an_address_of_another_machine_cannot_be_bound(context: Context) -> None:
    # 192.0.2.0/24 is kept for documents: no machine has it.
    with pytest.raises(UserError, match=r"^server.address 'tcp://192.0.2.1:5555' cannot be bound \(.+\); expected"):
        sockets.bind(sockets.router(context, heartbeat_s=1, linger_s=0), "tcp://192.0.2.1:5555")


def test_the_error_names_an_invalid_address(context: Context) -> None:
    with pytest.raises(UserError, match=r"^client.server 'tcp:/nowhere' is not an address"):
        sockets.connect(sockets.dealer(context, heartbeat_s=1, linger_s=0), "tcp:/nowhere")


def test_a_message_is_received_whole(context: Context) -> None:
    router = sockets.router(context, heartbeat_s=60, linger_s=0)
    dealer = sockets.dealer(context, heartbeat_s=60, linger_s=0)
    assert sockets.receive_routed(router) is None
    assert sockets.receive(dealer) is None
    sockets.connect(dealer, sockets.bind(router, "tcp://127.0.0.1:*"))
    assert dealer.poll(20_000, zmq.POLLOUT)
    dealer.send_multipart([b"header", b"one", b"", b"three"])
    dealer.send(b"")
    assert router.poll(20_000)
    received = sockets.receive_routed(router)
    assert received is not None
    assert received.header == b"header"
    assert [bytes(frame.buffer) for frame in received.frames] == [b"one", b"", b"three"]
    router.send_multipart([received.route.bytes, b"answer", b"payload"])
    assert dealer.poll(20_000)
    answer = sockets.receive(dealer)
    assert answer is not None
    header, frames = answer
    assert header == b"answer"
    assert [bytes(frame.buffer) for frame in frames] == [b"payload"]
    assert router.poll(20_000)
    empty = sockets.receive_routed(router)
    assert empty is not None
    assert (empty.route.bytes, empty.header, empty.frames) == (received.route.bytes, b"", [])


def test_of_more_than_a_connection_may_send_the_frame_that_goes_beyond_it_is_the_last_one_kept(
    context: Context,
) -> None:
    router = sockets.router(context, heartbeat_s=60, linger_s=0)
    dealer = sockets.dealer(context, heartbeat_s=60, linger_s=0)
    sockets.connect(dealer, sockets.bind(router, "tcp://127.0.0.1:*"))
    kept, asked = [], []
    for bytes_max, frames in [(0, 1), (0, 2), (3, 3), (4, 4), (8, 8), (100, 8)]:

        def bytes_of(route: bytes, bytes_max: int = bytes_max) -> int:
            asked.append(route)
            return bytes_max

        dealer.send_multipart([b"header"] + [b"four"] * frames)
        assert router.poll(20_000)
        received = sockets.receive_routed(router, payload_bytes_max=bytes_of)
        assert received is not None
        kept.append(len(received.frames))
    assert kept == [1, 1, 1, 2, 3, 8]
    assert asked == [received.route.bytes] * 5  # about a single frame, which is kept in any case, no caller is


def test_of_too_many_frames_one_too_many_is_kept(context: Context) -> None:
    router = sockets.router(context, heartbeat_s=60, linger_s=0)
    dealer = sockets.dealer(context, heartbeat_s=60, linger_s=0)
    sockets.connect(dealer, sockets.bind(router, "tcp://127.0.0.1:*"))
    dealer.send_multipart([b"header"] + [b"four"] * (limits.FRAMES_MAX + 100))
    dealer.send(b"next")
    assert router.poll(20_000)
    received = sockets.receive_routed(router)
    assert received is not None
    assert len(received.frames) == limits.FRAMES_MAX + 1
    assert router.poll(20_000)
    following = sockets.receive_routed(router)
    assert following is not None
    assert (following.header, following.frames) == (b"next", [])


def test_a_context_copies_small_messages_out_of_the_buffer_of_their_connection() -> None:
    with zmq.Context() as default, sockets.new_context() as context:
        zero_copy_receive = 10
        assert (default.get(zero_copy_receive), context.get(zero_copy_receive)) == (1, 0)
