"""The admission of clients to a socket behind a gate, through real sockets, and the errors on both sides."""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
import zmq

from support.keyed import KeyedClient
from support.running import PATIENCE_S
from unstale.errors import UserError
from unstale.net import keygen
from unstale.net.authorized_keys import AuthorizedKeys, ClientIds
from unstale.net.connections import ConnectionLimits
from unstale.net.limiter import ConnectionLimiter
from unstale.net.memory import MemoryBound
from unstale.net.zap import ZapAuthenticator
from unstale_client.net import keys, sockets
from unstale_client.net.handshakes import FAILED, Handshakes, parsed
from unstale_client.net.keys import Identity

pytestmark = pytest.mark.network

IdentityOf = Callable[[str], Identity]


class Guarded:
    """A ROUTER with a gate, in a context of its own. folder: None for plain text. on_crash: as of the gate."""

    def __init__(self, folder: Path | None, on_crash: Callable[[BaseException], None] | None = None) -> None:
        self.refused: Counter[str] = Counter()
        self.crashes: list[BaseException] = []
        self.authenticator = ZapAuthenticator(
            None if folder is None else str(folder),
            "server",
            "server.keys",
            refused=lambda reason: self.refused.update((reason,)),
            on_crash=on_crash or self.crashes.append,
        )
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = sockets.router(self.context, heartbeat_s=60, linger_s=0)
        self.limiter = ConnectionLimiter(
            ConnectionLimits(),
            is_client=lambda _: False,
            memory=MemoryBound(2**50),
            message_bytes_max=0,
            on_cut=lambda _route, _reason: None,
            on_failed=self.authenticator.on_handshake_failed,
            on_crash=self.crashes.append,
        )
        self.authenticator.start(self.context, self.socket)
        self.limiter.watch(self.context, self.socket)
        self.address = sockets.bind(self.socket, "tcp://127.0.0.1:*")
        self._clients = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clients.close()
        self.limiter.close()
        self.authenticator.close()
        self.authenticator.close()  # twice is once
        self.socket.close()
        self.context.term()
        assert not self.crashes

    def client(self, identity: Identity | None, client_id: int = 0) -> KeyedClient:
        return self._clients.enter_context(KeyedClient(self.address, client_id, identity))

    def key_behind(self, client: KeyedClient) -> str | None:
        """The key that the gate finds behind a message of a client."""
        assert client.is_let_in()
        client.say_bytes(b"header")
        assert self.socket.poll(PATIENCE_S * 1000)
        received = sockets.receive_routed(self.socket)
        assert received is not None
        return self.authenticator.key_of(received.route)

    def until_refused(self, reason: str, times: int = 1) -> None:
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.005)):
            if self.refused[reason] == times:
                return
            pause.wait(0.005)
        raise AssertionError(f"not refused for {reason}, but {self.refused}")


@pytest.fixture
def guarded(folder: Path) -> Iterator[Guarded]:
    with Guarded(folder) as made:
        yield made


def test_an_admitted_client_connects_and_is_identified_by_its_key(guarded: Guarded, identity_of: IdentityOf) -> None:
    for name in ("phone", "laptop"):
        assert guarded.key_behind(guarded.client(identity_of(name))) == identity_of(name).public
    assert not guarded.refused


def test_every_context_has_a_gate_of_its_own(folder: Path, identity_of: IdentityOf) -> None:
    with Guarded(folder) as one, Guarded(folder) as other:
        for guarded in (one, other):
            assert guarded.key_behind(guarded.client(identity_of("phone"))) == identity_of("phone").public


def test_a_client_that_reconnects_is_checked_again(folder: Path, guarded: Guarded, identity_of: IdentityOf) -> None:
    with KeyedClient(guarded.address, 0, identity_of("phone")) as before:
        assert guarded.key_behind(before) is not None
    keygen.revoke(folder, "laptop")
    assert guarded.key_behind(guarded.client(identity_of("phone"))) == identity_of("phone").public


def test_a_valid_key_that_is_not_admitted_is_refused(
    guarded: Guarded, stranger: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    # Without an allow-list CURVE would let it in.
    for times in (1, 2):
        client = guarded.client(stranger)
        guarded.until_refused("unknown-key", times)
        assert client.is_kept_out()
    assert not guarded.socket.poll(0)
    (record,) = caplog.records  # once, however often it connects
    assert record.message == f"refused a connection from 127.0.0.1 with the unknown key {stranger.public}"


def test_a_client_without_a_key_is_refused(guarded: Guarded) -> None:
    client = guarded.client(None)
    guarded.until_refused("no-key")
    assert client.is_kept_out()


def test_a_client_of_another_server_is_refused(guarded: Guarded, identity_of: IdentityOf) -> None:
    own = identity_of("phone")
    client = guarded.client(Identity(own.public, own.secret, identity_of("laptop").public))
    guarded.until_refused("wrong-server-key")
    assert client.is_kept_out()


def test_a_key_is_admitted_and_revoked_without_a_restart(folder: Path, guarded: Guarded) -> None:
    keygen.create(folder, "tablet", ClientIds.parse("3", "--clients"))
    tablet = keys.identity(folder / "tablet.key_secret", "client.key")
    assert guarded.key_behind(guarded.client(tablet)) == tablet.public
    assert guarded.authenticator.may_speak(tablet.public, 3)
    keygen.revoke(folder, "tablet")
    client = guarded.client(tablet)
    guarded.until_refused("unknown-key")
    assert client.is_kept_out()


def test_a_key_that_is_connected_may_speak_no_more_once_it_is_revoked(
    folder: Path, guarded: Guarded, identity_of: IdentityOf
) -> None:
    client = guarded.client(identity_of("phone"))
    key = guarded.key_behind(client)
    assert guarded.authenticator.may_speak(key, 1)
    keygen.revoke(folder, "phone")
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if not guarded.authenticator.may_speak(guarded.key_behind(client), 1):
            return
        pause.wait(0.005)
    raise AssertionError("a revoked key may go on for ever")


def test_no_client_connects_while_the_gate_does_not_answer(folder: Path, identity_of: IdentityOf) -> None:
    with Guarded(folder) as guarded:
        guarded.limiter.close()  # a socket has one monitor
        guarded.authenticator.close()
        with guarded.socket.get_monitor_socket(FAILED, "inproc://looking-on") as monitor:
            client = guarded.client(identity_of("phone"))
            # While it closes, the gate does not answer, and libzmq gives up on a handshake after 30 s.
            assert monitor.poll(2 * PATIENCE_S * 1000)
            assert parsed(monitor.recv_multipart())[0] == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            assert client.is_kept_out()
            guarded.socket.disable_monitor()


def test_a_fatal_error_of_the_gate_is_reported_and_no_client_connects(
    folder: Path, identity_of: IdentityOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    fatal: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    with Guarded(folder, fatal.put) as guarded:

        def fails(*_: object, **__: object) -> None:
            raise MemoryError

        monkeypatch.setattr(AuthorizedKeys, "refresh", fails)
        client = guarded.client(identity_of("phone"))
        assert isinstance(fatal.get(timeout=PATIENCE_S), MemoryError)
        assert client.is_kept_out()


def test_without_keys_every_client_connects_under_any_id() -> None:
    with Guarded(None) as guarded:
        assert guarded.key_behind(guarded.client(None)) is None
        assert guarded.authenticator.may_speak(None, 7)


def test_a_wrong_folder_is_reported_before_anything_starts(folder: Path) -> None:
    (folder / "server.key_secret").chmod(0o640)
    with pytest.raises(UserError, match=r"^server\.keys '.*/server\.key_secret' has mode 640"):
        Guarded(folder)
    with pytest.raises(UserError, match=r"^server\.keys '.*/nowhere/server\.key_secret' does not exist"):
        Guarded(folder / "nowhere")


# --- errors of a connecting socket ---


class Knocking:
    """A DEALER whose handshakes are watched."""

    def __init__(self, address: str, identity: Identity | None) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = sockets.dealer(self.context, heartbeat_s=60, linger_s=0, identity=identity)
        public = None if identity is None else identity.public
        self.handshakes = Handshakes(socket, address, public, ("client.key", "client.server_key"))
        sockets.connect(socket, address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.handshakes.close()
        self.handshakes.close()  # twice is once
        self.handshakes.socket.close()
        self.context.term()

    def hears(self) -> None:
        assert self.handshakes.monitor.poll(PATIENCE_S * 1000)
        self.handshakes.check()

    def hears_an_end(self) -> str:
        """The sentence that it ends with."""
        with pytest.raises(UserError) as raised:  # noqa: PT012  (it may try more than once)
            for _ in range(100):
                self.hears()
        return str(raised.value)


def test_an_admitted_client_gets_no_error(guarded: Guarded, identity_of: IdentityOf) -> None:
    with Knocking(guarded.address, identity_of("phone")) as knocking:
        knocking.hears()
        assert knocking.handshakes.socket.poll(PATIENCE_S * 1000, zmq.POLLOUT)


def test_a_refused_key_is_reported_in_one_sentence(guarded: Guarded, stranger: Identity) -> None:
    with Knocking(guarded.address, stranger) as knocking:
        assert knocking.hears_an_end() == (
            f"the server at {guarded.address} refuses the key {stranger.public} of client.key: "
            "the server has not authorized it, or has revoked it"
        )


def test_plain_text_to_a_server_with_keys_is_reported_in_one_sentence(guarded: Guarded) -> None:
    with Knocking(guarded.address, None) as knocking:
        assert knocking.hears_an_end() == (
            f"the server at {guarded.address} requires a key; set client.key, see unstale keys"
        )


def test_a_key_for_a_server_in_plain_text_is_reported_in_one_sentence(identity_of: IdentityOf) -> None:
    with Guarded(None) as plain, Knocking(plain.address, identity_of("phone")) as knocking:
        assert knocking.hears_an_end() == (
            f"the server at {plain.address} uses plain text; start it with keys, or omit client.key"
        )


def test_a_wrong_server_key_is_warned_of_once_and_tried_on(
    guarded: Guarded, identity_of: IdentityOf, caplog: pytest.LogCaptureFixture
) -> None:
    own = identity_of("phone")
    wrong = Identity(own.public, own.secret, identity_of("laptop").public)
    with caplog.at_level(logging.WARNING), Knocking(guarded.address, wrong) as knocking:
        for _ in range(5):
            knocking.hears()
    assert [record.message for record in caplog.records] == [
        f"connections to {guarded.address} break during the handshake; is the key in client.server_key that server's?"
    ]
