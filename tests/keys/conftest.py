"""Folders of keys as a person makes them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from unstale.net import authorized_keys, keygen, zap
from unstale_client.net import keys


@pytest.fixture(autouse=True)
def _read_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are read again at once instead of every second."""
    monkeypatch.setattr(zap, "REREAD_S", 0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The keys of a server, and of two processes of clients: `phone` owns 0 and 1, `laptop` 2."""
    made = tmp_path / "keys"
    keygen.create(made, "server", None)
    keygen.create(made, "phone", authorized_keys.ClientIds.parse("0-1", "--clients"))
    keygen.create(made, "laptop", authorized_keys.ClientIds.parse("2", "--clients"))
    return made


@pytest.fixture
def identity_of(folder: Path) -> Callable[[str], keys.Identity]:
    """The identity of a peer, by name."""
    return lambda name: keys.identity(folder / f"{name}.key_secret", "client.key")


@pytest.fixture
def stranger(folder: Path) -> keys.Identity:
    """A peer that has the server's public key, and whose key the server does not admit."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    return keys.Identity(public, secret, keys.public_key(folder / "server.key", "client.server_key"))
