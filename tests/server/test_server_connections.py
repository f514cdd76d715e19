"""A server with real sockets, strangers beside honest clients: which connections are cut, and that rounds go on."""

import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from support.keyed import KeyedClient
from support.running import IN_PROCESS, RunningServer, small, until
from support.scrape import sample
from support.wire import RawClient
from support.zmtp import CURVE, EMPTY_MORE, ZmtpPeer, frame, frame_start, greeting
from unstale.config import Settings
from unstale.net import authorized_keys, keygen
from unstale.net.connections import WASTED_AT_ONCE
from unstale.net.memory import MemoryBound
from unstale_client.net import keys
from unstale_proto import codec
from unstale_proto.errors import Reason
from unstale_proto.limits import FRAME_BYTES_MAX, FRAMES_MAX
from unstale_proto.messages import Error, Hello, Task

pytestmark = pytest.mark.network

ONES = np.ones(650, dtype="<f4")
ROUNDS = 20


def cut(server: RunningServer, reason: str) -> float:
    return sample(server.http, "unstale_connections_cut_total", reason=reason)


def connections(server: RunningServer, state: str) -> float:
    return sample(server.http, "unstale_connections", state=state)


def settings(*, clients: int = 1, keys: Path | None = None, **server: object) -> Settings:
    section = {"keys": None if keys is None else str(keys), **server}
    return small(clients=clients, min_clients=1, rounds=10_000, server=section)


PATIENT = {"lease_s": 3600, "hello_s": 3600}
"""Silent peers stay clients, however long a busy machine takes."""


def make_rounds(client: RawClient, task: Task) -> Task:
    """Rounds that one client makes alone."""
    for _ in range(ROUNDS):
        assert client.answer(task, ONES * np.float32(1e-3)).outcome == "accepted"
        task, _ = client.task()
    return task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Keys of a server and of a process that owns client 0."""
    made = tmp_path / "keys"
    keygen.create(made, "server", None)
    keygen.create(made, "phone", authorized_keys.ClientIds.parse("0", "--clients"))
    return made


def honest(server: RunningServer, folder: Path | None) -> RawClient:
    if folder is None:
        return RawClient(server.address)
    return KeyedClient(server.address, 0, keys.identity(folder / "phone.key_secret", "client.key"))


@pytest.mark.parametrize("with_keys", [False, True])
def test_silent_connections_over_the_cap_are_cut_and_clients_come_in(with_keys: bool, folder: Path) -> None:
    used = folder if with_keys else None
    with RunningServer(settings(keys=used, strangers_max=5)) as server, ExitStack() as stack:
        strangers = [stack.enter_context(ZmtpPeer(server.address)) for _ in range(20)]
        assert all(stranger.is_ended() for stranger in strangers[:14])
        client = stack.enter_context(honest(server, used))
        client.join()
        make_rounds(client, client.task()[0])
        assert cut(server, "too-many") in (15, 16)  # one more if the client was not yet one when it came
        until(lambda: connections(server, "client") == 1)
        assert connections(server, "stranger") <= 5


def test_a_handshake_that_never_ends_holds_no_more_than_its_bound(folder: Path) -> None:
    with RunningServer(settings(keys=folder)) as server, ExitStack() as stack:
        client = stack.enter_context(honest(server, folder))
        client.join()
        task, _ = client.task()
        strangers = [stack.enter_context(ZmtpPeer(server.address)) for _ in range(10)]
        for stranger in strangers:
            stranger.send(greeting(CURVE) + frame_start(FRAME_BYTES_MAX, command=True) + bytes(1024 * 1024))
        assert all(stranger.is_ended() for stranger in strangers)
        assert cut(server, "message-too-long") == 10
        make_rounds(client, task)


def test_a_connection_that_says_no_hello_is_cut_and_a_client_that_heartbeats_is_not() -> None:
    with (
        RunningServer(settings(hello_s=0.3, heartbeat_s=0.05, lease_s=3600)) as server,
        ZmtpPeer(server.address) as silent,
        ZmtpPeer(server.address) as greeted,
        RawClient(server.address) as client,
    ):
        client.join()
        task, _ = client.task()
        greeted.shake_hands()
        assert greeted.is_ended()
        assert silent.is_ended()
        # libzmq's own limit of a handshake may end the silent one first.
        assert cut(server, "no-hello") in (1, 2)
        make_rounds(client, task)
        until(lambda: connections(server, "client") == 1)


def joined(peer: ZmtpPeer, client_id: int = 0) -> None:
    peer.shake_hands()
    peer.send(frame(codec.encode(Hello(client_id=client_id, session=f"{client_id:032x}", holding=()))))


@pytest.mark.parametrize("piece", [EMPTY_MORE * 50_000, frame(bytes(100_000), more=True)])
def test_a_message_that_never_ends_is_cut_and_its_client_quarantined(piece: bytes) -> None:
    with (
        RunningServer(settings(clients=2)) as server,
        ZmtpPeer(server.address) as endless,
        RawClient(server.address, 1) as client,
    ):
        joined(endless)
        client.join()
        task, _ = client.task()
        until(lambda: connections(server, "client") == 2)
        pieces = 0
        while endless.send(piece):
            pieces += 1
            assert pieces < 50_000, "5 GB were taken"
        make_rounds(client, task)
        assert cut(server, "message-too-long") == 1
        with RawClient(server.address) as again:
            again.say_hello()
            assert again.hear(Error).reason is Reason.QUARANTINED


def test_a_message_of_too_many_frames_is_read_to_its_end_once_and_its_client_quarantined() -> None:
    with (
        RunningServer(settings(clients=2)) as server,
        ZmtpPeer(server.address) as many,
        RawClient(server.address, 1) as client,
    ):
        joined(many)
        client.join()
        task, _ = client.task()
        until(lambda: connections(server, "client") == 2)
        # All but the rest of a legal message of this run, which is cut no sooner: 2,600 bytes and a header.
        many.send(frame(b"header", more=True) + EMPTY_MORE * (3 * FRAMES_MAX) + frame(b""))
        assert many.is_ended()
        until(lambda: cut(server, "too-many-frames") == 1)
        make_rounds(client, task)
        with RawClient(server.address) as again:
            again.say_hello()
            assert again.hear(Error).reason is Reason.QUARANTINED


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux drops attempts to connect by address")
@pytest.mark.slow
def test_an_address_that_reconnects_repeatedly_is_limited_and_no_other() -> None:
    with RunningServer(settings(clients=2, strangers_max=5, lease_s=3600)) as server, ExitStack() as stack:
        client = stack.enter_context(RawClient(server.address))
        client.join()
        task, _ = client.task()
        until(lambda: connections(server, "client") == 1)
        wasted = 0
        while sample(server.http, "unstale_addresses_limited") == 0:
            for _ in range(20):
                ZmtpPeer(server.address, source="127.0.0.2").close()
                wasted += 1
            assert wasted < 100_000, "no address is limited"
        assert wasted >= WASTED_AT_ONCE
        task = make_rounds(client, task)
        newcomer = stack.enter_context(RawClient(server.address, 1))  # from 127.0.0.1
        newcomer.join()
        make_rounds(client, task)
        until(lambda: sample(server.http, "unstale_addresses_limited") == 0, "the limit is lifted again")
        stack.enter_context(ZmtpPeer(server.address, source="127.0.0.2")).shake_hands()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory is used")
def test_over_the_bound_of_memory_those_that_hold_unread_bytes_are_cut_and_no_others() -> None:
    with RunningServer(settings(clients=4, **PATIENT, **IN_PROCESS)) as server, ExitStack() as stack:
        peers = [stack.enter_context(ZmtpPeer(server.address)) for _ in range(3)]
        for client_id, peer in enumerate(peers):
            joined(peer, client_id)
        client = stack.enter_context(RawClient(server.address, 3))
        client.join()
        task, _ = client.task()
        until(lambda: connections(server, "client") == 4)
        limiter = server.server._port._limiter
        for peer in peers:
            peer.send(frame_start(60_000))
        until(lambda: all(one.messages == one.seen for one in limiter.table), "hellos count no more")
        for number, peer in enumerate(peers):
            peer.send(bytes(15_000 * (number + 1)))
        until(lambda: limiter.table.held_bytes >= 90_000, "all of it was read")
        used = iter([3, 3, 3, 2, 2, 0])  # over the bound before and after free memory is returned, twice
        limiter.memory = MemoryBound(1, used=lambda: next(used, 0), shrink=lambda: None)
        assert peers[2].is_ended()
        assert peers[1].is_ended()
        make_rounds(client, task)
        assert cut(server, "memory") == 2
        until(lambda: connections(server, "client") == 2)


def test_over_the_bound_of_all_together_the_one_that_holds_most_is_cut() -> None:
    bounded = settings(clients=30, unread_bytes_max=2**20, **PATIENT, **IN_PROCESS)
    with RunningServer(bounded) as server, ExitStack() as stack:
        peers = [stack.enter_context(ZmtpPeer(server.address)) for _ in range(29)]
        for client_id, peer in enumerate(peers):
            joined(peer, client_id)
        client = stack.enter_context(RawClient(server.address, 29))
        client.join()
        task, _ = client.task()
        until(lambda: connections(server, "client") == 30)
        table = server.server._port._limiter.table
        for peer in peers:
            peer.send(frame_start(60_000))
        until(lambda: all(one.messages == one.seen for one in table), "hellos count no more")
        for peer in peers:  # as a header may have; 1.45 MB together
            peer.send(bytes(50_000))
        until(lambda: cut(server, "memory") == 9)  # 20 times 50,000 fit
        make_rounds(client, task)
        until(lambda: connections(server, "client") == 21)
