"""Folders of keys as a person makes them, and clients that show a key."""

from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from support.running import PATIENCE_S
from support.wire import RawClient
from unstale.net import gate, keyring, keys

EVENTS_POLLED_MS = 20


class KeyedClient(RawClient):
    """A client with a key, or without one."""

    def __init__(self, address: str, client_id: int, identity: keys.Identity | None) -> None:
        self.client_id = client_id
        self.session = f"{client_id:032x}"
        self.address = address
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        if identity is not None:
            assert identity.server is not None
            self.socket.curve_publickey = identity.public.encode()
            self.socket.curve_secretkey = identity.secret.encode()
            self.socket.curve_serverkey = identity.server.encode()
        self.socket.connect(address)

    def is_let_in(self) -> bool:
        """Whether there is a connection; waits for one."""
        return bool(self.socket.poll(PATIENCE_S * 1000, zmq.POLLOUT))

    def is_kept_out(self) -> bool:
        """Whether there is no connection now. To be asked when the other side has counted a refusal."""
        return not self.socket.poll(0, zmq.POLLOUT)


@pytest.fixture(autouse=True)
def _read_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are read again at once instead of every second."""
    monkeypatch.setattr(gate, "REREAD_S", 0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The keys of a server, and of two processes of clients: `phone` owns 0 and 1, `laptop` 2."""
    made = tmp_path / "keys"
    keyring.make(made, "server", None)
    keyring.make(made, "phone", keys.ClientIds.parse("0-1", "--clients"))
    keyring.make(made, "laptop", keys.ClientIds.parse("2", "--clients"))
    return made


@pytest.fixture
def identity_of(folder: Path) -> Callable[[str], keys.Identity]:
    """Who somebody is, by name."""
    return lambda name: keys.identity(folder / f"{name}.key_secret", "client.key")


@pytest.fixture
def stranger(folder: Path) -> keys.Identity:
    """Somebody who knows the server's public key, and whom it does not know."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    return keys.Identity(public, secret, keys.public_key(folder / "server.key", "client.server_key"))
