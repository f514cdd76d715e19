"""Keys on both sides of an injector: it checks the clients' keys itself, and shows the server its own."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from support.keyed import KeyedClient
from support.running import PATIENCE_S, RunningServer, small
from support.scrape import sample
from unstale.config import Settings
from unstale.errors import UserError
from unstale.injector.service import Injector
from unstale.net import keygen
from unstale.net.authorized_keys import ClientIds
from unstale_client.net import keys
from unstale_client.net.keys import Identity
from unstale_proto.errors import Reason
from unstale_proto.messages import Error, Heartbeat

pytestmark = pytest.mark.network

IdentityOf = Callable[[str], Identity]
ONES = np.ones(650, dtype="<f4")


@pytest.fixture
def folder(folder: Path) -> Path:
    """With a key of an injector, too."""
    keygen.create(folder, "injector", ClientIds.parse("all", "--clients"))
    return folder


@pytest.fixture
def through(folder: Path) -> Callable[[str], Identity]:
    """The identity of a peer that connects to the injector."""

    def identity(name: str) -> Identity:
        made = keys.client_identity(str(folder / f"{name}.key_secret"), str(folder / "injector.key"))
        assert made is not None
        return made

    return identity


def with_keys(folder: Path) -> Settings:
    return small(clients=3, min_clients=1, rounds=1000, server={"keys": str(folder)})


class Injecting:
    """An injector that runs while the context lasts. changes: keys of its group."""

    def __init__(self, upstream: str, **changes: Any) -> None:
        own = {"address": "tcp://127.0.0.1:0", "http_address": "127.0.0.1:0", "upstream": upstream, **changes}
        self.injector = Injector(Settings(clients=3, injector=own))
        self.address = self.injector.address
        self.http = f"http://{self.injector.http_address}"
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.injector.stop()
        self.end()

    def end(self) -> None:
        """Wait for its end; raises its fatal error, once."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the injector does not end"
        error, self._error = self._error, None
        if error is not None:
            raise error

    def until_counted(self, reason: str) -> None:
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.005)):
            if self.refused(reason):
                return
            pause.wait(0.005)
        raise AssertionError(f"it counts no {reason}")

    def refused(self, reason: str) -> float:
        return sample(self.http, "unstale_injector_refused_total", reason=reason)

    def _run(self) -> None:
        try:
            self.injector.run()
        except BaseException as error:  # noqa: BLE001  (raised in the test's own thread)
            self._error = error


@pytest.mark.parametrize("tcp", [False, True])
def test_a_client_takes_part_through_an_injector(tcp: bool, folder: Path, through: IdentityOf) -> None:
    with (
        RunningServer(with_keys(folder)) as server,
        Injecting(server.address, keys=str(folder), tcp=tcp) as injecting,
        KeyedClient(injecting.address, 1, through("phone")) as client,
    ):
        assert client.join().client_id == 1
        task, _ = client.task()
        assert client.answer(task, ONES).outcome == "accepted"
        assert sample(server.http, "unstale_messages_refused_total", reason="not-the-owner") == 0


def test_anothers_client_id_is_refused_by_the_injector_itself(folder: Path, through: IdentityOf) -> None:
    # The server could not: it sees the injector's key, which authorizes all.
    with (
        RunningServer(with_keys(folder)) as server,
        Injecting(server.address, keys=str(folder)) as injecting,
        KeyedClient(injecting.address, 0, through("phone")) as owner,
        KeyedClient(injecting.address, 0, through("laptop")) as thief,
    ):
        owner.join()
        task, _ = owner.task()
        before = server.state()
        thief.say_hello()
        assert thief.hear(Error).reason is Reason.NOT_THE_OWNER
        assert injecting.refused("not-the-owner") == 1
        assert server.state() == before
        assert owner.answer(task, ONES).outcome == "accepted"


@pytest.mark.parametrize(
    ("reason", "of"),
    [
        ("unknown-key", lambda own, stranger: Identity(stranger.public, stranger.secret, own.server)),
        ("no-key", lambda *_: None),
        ("wrong-server-key", lambda own, stranger: Identity(own.public, own.secret, stranger.server)),
    ],
)
def test_the_injector_counts_refused_clients(
    reason: str,
    of: Callable[[Identity, Identity], Identity | None],
    folder: Path,
    through: IdentityOf,
    stranger: Identity,
) -> None:
    with (
        RunningServer(with_keys(folder)) as server,
        Injecting(server.address, keys=str(folder)) as injecting,
        KeyedClient(injecting.address, 0, of(through("phone"), stranger)) as client,
    ):
        injecting.until_counted(reason)
        assert client.is_kept_out()


def test_a_key_that_is_revoked_is_refused_on_its_live_connection(folder: Path, through: IdentityOf) -> None:
    phone = through("phone")
    pause = threading.Event()
    with (
        RunningServer(with_keys(folder)) as server,
        Injecting(server.address, keys=str(folder)) as injecting,
        KeyedClient(injecting.address, 0, phone) as client,
    ):
        client.join()
        client.task()
        keygen.revoke(folder, "phone")
        for number in range(int(PATIENCE_S / 0.005)):
            client.say(Heartbeat(number=number, version=0))
            answer, _ = client.hear_any()
            if isinstance(answer, Error):
                break
            pause.wait(0.005)
        assert isinstance(answer, Error)
        assert answer.reason is Reason.NOT_THE_OWNER
        assert injecting.refused("not-the-owner") == 1
        client.say_hello()
        assert client.hear(Error).reason is Reason.NOT_THE_OWNER


def ends_with(injecting: Injecting) -> str:
    injecting._thread.start()
    with pytest.raises(UserError) as raised:
        injecting.end()
    return str(raised.value)


def test_an_injector_reports_that_the_server_refuses_its_key(folder: Path) -> None:
    (folder / "admitted/injector.key").unlink()
    with RunningServer(with_keys(folder)) as server:
        sentence = ends_with(Injecting(server.address, keys=str(folder)))
    assert sentence.startswith(f"the server at {server.address} refuses the key ")
    assert " of injector.keys: the server has not authorized it" in sentence


def test_half_of_a_link_with_keys_is_none(folder: Path) -> None:
    with RunningServer(with_keys(folder)) as server:
        assert ends_with(Injecting(server.address)).endswith("requires a key; set injector.keys, see unstale keys")
    with RunningServer(small()) as server:
        assert ends_with(Injecting(server.address, keys=str(folder))).endswith(
            "uses plain text; start it with keys, or omit injector.keys"
        )


def test_an_injector_without_a_key_that_is_for_a_server_is_told(folder: Path) -> None:
    (folder / "injector.key_secret").write_text((folder / "server.key_secret").read_text())
    with pytest.raises(UserError, match=r"injector\.key_secret' does not name its server; create it by"):
        Injecting("tcp://127.0.0.1:5555", keys=str(folder))


def test_an_injector_does_not_connect_in_plain_text_to_another_machine() -> None:
    with pytest.raises(UserError) as refused:
        Injecting("tcp://192.0.2.1:5555")
    assert str(refused.value) == (
        "injector.upstream is 'tcp://192.0.2.1:5555', on another machine, expected injector.keys too, "
        "or injector.insecure true for plain text"
    )
