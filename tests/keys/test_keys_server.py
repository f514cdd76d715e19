"""A server with keys: the clients that each key authorizes, through real sockets, and the counts."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from support.keyed import KeyedClient
from support.running import PATIENCE_S, RunningServer, small
from support.scrape import sample
from unstale.client.service import ClientProcess
from unstale.config import Settings
from unstale.errors import UserError
from unstale.net import keygen
from unstale.net.authorized_keys import ClientIds
from unstale_client import loop
from unstale_client.net import sockets
from unstale_client.net.keys import Identity
from unstale_proto.errors import Reason
from unstale_proto.messages import Bye, Error, Heartbeat, Hello, Welcome

pytestmark = pytest.mark.network

IdentityOf = Callable[[str], Identity]
ONES = np.ones(650, dtype="<f4")


def with_keys(folder: Path, **changes: object) -> Settings:
    return small(clients=3, min_clients=1, rounds=1000, server={"keys": str(folder), **changes})


def until_counted(server: RunningServer, metric: str, reason: str) -> float:
    """The counter, once it is not 0."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if counted := sample(server.http, metric, reason=reason):
            return counted
        pause.wait(0.005)
    raise AssertionError(f"{metric} counts no {reason}")


def refused_messages(server: RunningServer) -> float:
    return sample(server.http, "unstale_messages_refused_total", reason=Reason.NOT_THE_OWNER)


def test_an_owner_takes_part(folder: Path, identity_of: IdentityOf) -> None:
    with RunningServer(with_keys(folder)) as server, KeyedClient(server.address, 1, identity_of("phone")) as client:
        assert client.join().client_id == 1
        task, _ = client.task()
        assert client.answer(task, ONES).outcome == "accepted"
        assert refused_messages(server) == 0


@pytest.mark.parametrize(
    ("reason", "of"),
    [
        ("unknown-key", lambda own, stranger, _: stranger),
        ("no-key", lambda *_: None),
        ("wrong-server-key", lambda own, _, other: Identity(own.public, own.secret, other.public)),
    ],
)
def test_a_refused_client_is_counted_and_changes_nothing(
    reason: str,
    of: Callable[[Identity, Identity, Identity], Identity | None],
    folder: Path,
    identity_of: IdentityOf,
    stranger: Identity,
) -> None:
    with RunningServer(with_keys(folder)) as server:
        before = server.state()
        identity = of(identity_of("phone"), stranger, identity_of("laptop"))
        with KeyedClient(server.address, 0, identity) as client:
            until_counted(server, "unstale_handshakes_refused_total", reason)
            assert client.is_kept_out()
        assert server.state() == before


def test_anothers_client_id_is_refused_counted_and_takes_nothing_over(folder: Path, identity_of: IdentityOf) -> None:
    with (
        RunningServer(with_keys(folder)) as server,
        KeyedClient(server.address, 0, identity_of("phone")) as owner,
        KeyedClient(server.address, 0, identity_of("laptop")) as thief,
    ):
        owner.join()
        task, _ = owner.task()
        before = server.state()
        for times in range(1, 4):
            thief.say_hello()
            error = thief.hear(Error)
            assert error.reason is Reason.NOT_THE_OWNER
            assert error.message == "the key of this connection does not own client 0"
            assert refused_messages(server) == times
        assert server.state() == before
        assert owner.answer(task, ONES).outcome == "accepted"


def test_repeated_attempts_with_a_stolen_id_do_not_block_its_owner(folder: Path, identity_of: IdentityOf) -> None:
    with (
        RunningServer(with_keys(folder, quarantine_after=3)) as server,
        KeyedClient(server.address, 0, identity_of("laptop")) as thief,
        KeyedClient(server.address, 0, identity_of("phone")) as owner,
    ):
        for _ in range(10):
            thief.say_hello()
            assert thief.hear(Error).reason in (Reason.NOT_THE_OWNER, Reason.QUARANTINED)
        owner.join()
        task, _ = owner.task()
        assert owner.answer(task, ONES).outcome == "accepted"


def test_one_key_authorizes_all_clients_that_it_owns_and_no_other(folder: Path, identity_of: IdentityOf) -> None:
    with RunningServer(with_keys(folder)) as server, ExitStack() as stack:
        phone = identity_of("phone")
        clients = [stack.enter_context(KeyedClient(server.address, one, phone)) for one in range(3)]
        for client in clients:
            client.say_hello()
        assert [type(client.hear_any()[0]) for client in clients] == [Welcome, Welcome, Error]


def test_a_connection_cannot_speak_for_another_client_later(folder: Path, identity_of: IdentityOf) -> None:
    with RunningServer(with_keys(folder)) as server, KeyedClient(server.address, 0, identity_of("phone")) as client:
        client.join()
        client.task()
        client.say(Hello(client_id=2, session=client.session))
        assert client.hear(Error).reason is Reason.NOT_THE_OWNER
        client.hears_nothing_before(1)  # it is bound to its own client, as before


def test_a_routing_id_that_was_anothers_gives_no_right_to_its_client(folder: Path, identity_of: IdentityOf) -> None:
    with RunningServer(with_keys(folder)) as server:
        with KeyedClient(server.address, 0, identity_of("phone"), routing_id=b"chosen") as owner:
            owner.join()
        for _ in range(1000):  # until the server has dropped the owner's connection
            with KeyedClient(server.address, 0, identity_of("laptop"), routing_id=b"chosen") as thief:
                thief.is_let_in()
                thief.say(Heartbeat(number=1, version=0))
                if thief.socket.poll(200):
                    assert thief.hear(Error).reason is Reason.NOT_THE_OWNER
                    break
        assert refused_messages(server) == 1


def hears_of_its_end(client: KeyedClient) -> int:
    """Heartbeats until one is refused; how many were answered."""
    pause = threading.Event()
    for number in range(int(PATIENCE_S / 0.005)):
        client.say(Heartbeat(number=number, version=0))
        answer, _ = client.hear_any()
        if isinstance(answer, Error):
            assert answer.reason is Reason.NOT_THE_OWNER
            return number
        assert isinstance(answer, Heartbeat)
        pause.wait(0.005)
    raise AssertionError("a revoked key may go on for ever")


def test_a_key_that_is_revoked_is_refused_on_its_live_connection(folder: Path, identity_of: IdentityOf) -> None:
    phone = identity_of("phone")
    with (
        RunningServer(with_keys(folder)) as server,
        KeyedClient(server.address, 0, phone) as client,
        KeyedClient(server.address, 2, identity_of("laptop")) as other,
    ):
        client.join()
        task, _ = client.task()
        other.join()
        keygen.revoke(folder, "phone")
        hears_of_its_end(client)
        assert refused_messages(server) == 1
        before = server.state()
        client.say(Hello(client_id=0, session=client.session))
        assert client.hear(Error).reason is Reason.NOT_THE_OWNER
        client.say(Bye())
        assert server.state()["accepted"] == before["accepted"] == 0
        with KeyedClient(server.address, 0, phone) as again:
            until_counted(server, "unstale_handshakes_refused_total", "unknown-key")
            assert again.is_kept_out()
        task, _ = other.task()
        assert other.answer(task, ONES).outcome == "accepted"


def test_a_key_that_is_admitted_while_the_server_runs_takes_part(folder: Path, identity_of: IdentityOf) -> None:
    keygen.revoke(folder, "laptop")
    with RunningServer(with_keys(folder)) as server:
        keygen.create(folder, "tablet", ClientIds.parse("2", "--clients"))
        with KeyedClient(server.address, 2, identity_of("tablet")) as client:
            assert client.join().client_id == 2


def process(address: str, identity: Identity | None, *, first: int = 0, count: int = 1) -> ClientProcess:
    """Real clients, which get no work done here."""

    def prepare(_: Welcome) -> None:
        raise AssertionError("there is no work to be done")

    return ClientProcess(
        server=address,
        client_ids=range(first, first + count),
        prepare=prepare,  # type: ignore[arg-type]
        heartbeat_s=60,
        linger_s=0,
        patience_s=PATIENCE_S,
        identity=identity,
    )


def test_a_client_process_reports_that_its_key_is_refused(folder: Path, stranger: Identity) -> None:
    with RunningServer(with_keys(folder)) as server, pytest.raises(UserError) as raised:
        process(server.address, stranger).run()
    assert str(raised.value).startswith(
        f"the server at {server.address} refuses the key {stranger.public} of client.key"
    )


def test_a_client_process_reports_that_it_needs_a_key(folder: Path) -> None:
    with RunningServer(with_keys(folder)) as server, pytest.raises(UserError) as raised:
        process(server.address, None).run()
    assert "requires a key; set client.key" in str(raised.value)


def test_a_client_process_reports_that_the_server_has_no_keys(identity_of: IdentityOf) -> None:
    with RunningServer(small()) as server, pytest.raises(UserError) as raised:
        process(server.address, identity_of("phone")).run()
    assert "uses plain text; start it with keys, or omit client.key" in str(raised.value)


def test_a_client_process_reports_that_its_ids_belong_to_another_key(folder: Path, identity_of: IdentityOf) -> None:
    with RunningServer(with_keys(folder)) as server, pytest.raises(UserError) as raised:
        process(server.address, identity_of("laptop"), first=0, count=1).run()
    assert str(raised.value).endswith("the key of this connection does not own client 0")


def test_a_client_whose_key_is_refused_ends_the_process_though_another_one_is_connected(
    folder: Path, identity_of: IdentityOf, stranger: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a key that is revoked while the second of two connections reconnects."""
    monkeypatch.setattr(loop, "AWAY_S", 0.2)
    with RunningServer(small(clients=3, server={"keys": str(folder)})) as server:  # it waits for the third
        clients = process(server.address, identity_of("phone"), count=2)._loop
        _, second = clients._clients.values()
        clients._dealer = partial(sockets.dealer, clients._context, heartbeat_s=60, linger_s=0, identity=stranger)
        clients._replace_socket(second)
        sockets.connect(second.socket, server.address)
        clients._schedule(second)
        with pytest.raises(UserError, match="refuses the key"):
            clients.run()
