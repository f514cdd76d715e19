"""A start that fails ends with its one message, with keys and without, whatever was made before it failed."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.running import PATIENCE_S, RunningServer, small
from unstale.config import Settings
from unstale.errors import UserError
from unstale.net import keyring
from unstale.server.service import Server

pytestmark = pytest.mark.network


@pytest.fixture(params=["plain text", "keys"])
def server_keys(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Settings of the server for its link."""
    if request.param == "plain text":
        return {}
    keyring.make(tmp_path / "keys", "server", None)
    return {"keys": str(tmp_path / "keys")}


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def message_of(settings: Settings) -> str:
    """The message that a start ends with. A start that does not end fails the test instead of holding it up."""
    messages: list[str] = []

    def start() -> None:
        try:
            Server(settings, on_progress=lambda _: None)
        except UserError as error:
            messages.append(str(error))

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the start hangs"
    (message,) = messages
    return message


def kept(folder: Path, server: dict[str, Any], **changes: Any) -> Settings:
    """A run that is kept in a directory."""
    run = {"directory": str(folder / "run"), "free_bytes_min": 0}
    return small(run=run, server=server, **changes)


def test_a_port_in_use(server_keys: dict[str, str]) -> None:
    with taken_port() as port:
        message = message_of(small(server={**server_keys, "address": f"tcp://127.0.0.1:{port}"}))
    assert message == (
        f"server.address tcp://127.0.0.1:{port} is in use; stop what listens there or name another port"
    )


def test_an_http_port_in_use(server_keys: dict[str, str]) -> None:
    with taken_port() as port:
        message = message_of(small(server={**server_keys, "http_address": f"127.0.0.1:{port}"}))
    assert message.startswith(f"server.http_address 127.0.0.1:{port} cannot be used (address already in use)")


def test_an_address_of_another_machine(server_keys: dict[str, str]) -> None:
    address = "tcp://192.0.2.1:5555"  # TEST-NET-1
    message = message_of(small(server={**server_keys, "address": address, "insecure": True}))
    assert message.startswith(f"server.address '{address}' cannot be bound")


def test_a_run_directory_in_use(tmp_path: Path, server_keys: dict[str, str]) -> None:
    settings = kept(tmp_path, server_keys)
    with RunningServer(settings):
        assert "is in use by another process" in message_of(settings)


def test_a_run_directory_of_other_settings(tmp_path: Path, server_keys: dict[str, str]) -> None:
    with RunningServer(kept(tmp_path, server_keys)):
        pass
    assert message_of(kept(tmp_path, server_keys, rounds=4)).startswith("rounds is 4, but the run in")


def test_a_database_that_is_damaged(tmp_path: Path, server_keys: dict[str, str]) -> None:
    with RunningServer(kept(tmp_path, server_keys)):
        pass
    (tmp_path / "run" / "run.db").write_bytes(b"no database" * 100)
    assert "run.db is damaged" in message_of(kept(tmp_path, server_keys))


def test_a_model_that_cannot_be_saved(tmp_path: Path, server_keys: dict[str, str]) -> None:
    message = message_of(kept(tmp_path, server_keys, save_model=str(tmp_path / "no" / "model.safetensors")))
    assert message.startswith("save_model is")


def test_keys_that_are_missing(tmp_path: Path) -> None:
    message = message_of(small(server={"keys": str(tmp_path / "none")}))
    assert message.startswith("server.keys")


def test_a_port_is_free_again_after_a_start_that_failed(server_keys: dict[str, str]) -> None:
    with taken_port() as port:
        pass
    address = f"tcp://127.0.0.1:{port}"
    with taken_port() as http_port:
        message_of(
            small(server={**server_keys, "address": address, "http_address": f"127.0.0.1:{http_port}"})
        )
    with RunningServer(small(server={**server_keys, "address": address})) as server:
        assert server.address == address
