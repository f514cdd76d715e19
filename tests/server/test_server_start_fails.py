"""A start that fails ends with its one message, with keys and without, whatever was made before it failed."""

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.processes import START_S
from support.running import PATIENCE_S, RunningServer, small
from unstale.config import Settings
from unstale.config.write import resolved
from unstale.errors import UserError
from unstale.journal.database import Database
from unstale.journal.resumption import GIVEN_UP
from unstale.net import keygen
from unstale.server.service import Server

pytestmark = pytest.mark.network


@pytest.fixture(params=["plain text", "keys"])
def server_keys(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Settings of the server for its link."""
    if request.param == "plain text":
        return {}
    keygen.create(tmp_path / "keys", "server", None)
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
        f"server.address tcp://127.0.0.1:{port} is in use; stop the program that uses it, or choose another port"
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
        message_of(small(server={**server_keys, "address": address, "http_address": f"127.0.0.1:{http_port}"}))
    with RunningServer(small(server={**server_keys, "address": address})) as server:
        assert server.address == address


def test_a_run_directory_that_cannot_be_made(tmp_path: Path, server_keys: dict[str, str]) -> None:
    (tmp_path / "file").write_text("")
    message = message_of(kept(tmp_path / "file", server_keys))
    assert message == f"cannot open the run directory {tmp_path / 'file' / 'run'}: not a directory"


def test_data_that_are_missing(tmp_path: Path, server_keys: dict[str, str]) -> None:
    data = {"name": "npz", "path": str(tmp_path / "none.npz")}
    assert str(tmp_path / "none.npz") in message_of(kept(tmp_path, server_keys, data=data))


# --- as processes ---


@contextmanager
def port_taken(settings: Settings) -> Iterator[Settings]:
    with taken_port() as port:
        yield with_server(settings, address=f"tcp://127.0.0.1:{port}")


@contextmanager
def http_port_taken(settings: Settings) -> Iterator[Settings]:
    with taken_port() as port:
        yield with_server(settings, http_address=f"127.0.0.1:{port}")


@contextmanager
def run_in_use(settings: Settings) -> Iterator[Settings]:
    with RunningServer(settings):
        yield settings


@contextmanager
def run_in_use_without_its_lock_file(settings: Settings) -> Iterator[Settings]:
    with RunningServer(settings) as server:
        (Path(settings.run.directory) / "lock").unlink()
        yield settings
        assert server.is_alive


@contextmanager
def run_given_up(settings: Settings) -> Iterator[Settings]:
    with RunningServer(settings):
        pass
    database = Database(Path(settings.run.directory) / "run.db")
    database.set_meta({GIVEN_UP: "training diverges"})
    database.close()
    yield settings


@contextmanager
def run_damaged(settings: Settings) -> Iterator[Settings]:
    with RunningServer(settings):
        pass
    (Path(settings.run.directory) / "run.db").write_bytes(b"no database" * 100)
    yield settings


@contextmanager
def run_of_all(settings: Settings) -> Iterator[Settings]:
    folder = Path(settings.run.directory)
    folder.mkdir()
    folder.chmod(0o777)
    yield settings


@contextmanager
def run_below_a_file(settings: Settings) -> Iterator[Settings]:
    Path(settings.run.directory).write_text("")
    yield with_run(settings, directory=f"{settings.run.directory}/run")


@contextmanager
def data_missing(settings: Settings) -> Iterator[Settings]:
    data = settings.data.model_copy(update={"name": "npz", "path": "/none.npz"})
    yield settings.model_copy(update={"data": data})


@contextmanager
def model_not_saved(settings: Settings) -> Iterator[Settings]:
    yield settings.model_copy(update={"save_model": "/none/model.safetensors"})


@contextmanager
def keys_missing(settings: Settings) -> Iterator[Settings]:
    yield with_server(settings, keys="/none")


@contextmanager
def few_descriptors(settings: Settings) -> Iterator[Settings]:
    yield settings


def with_server(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update={"server": settings.server.model_copy(update=changes)})


def with_run(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update={"run": settings.run.model_copy(update=changes)})


CONDITIONS: list[tuple[Callable[..., Any], str]] = [
    (port_taken, r"server\.address tcp://127\.0\.0\.1:\d+ is in use"),
    (http_port_taken, r"server\.http_address 127\.0\.0\.1:\d+ cannot be used"),
    (keys_missing, r"server\.keys"),
    (run_in_use, r".* is in use by another process"),
    (run_in_use_without_its_lock_file, r".* is in use by another process"),
    (run_given_up, r"the run in .* was given up: training diverges; `unstale rollback .* --to VERSION`"),
    (run_damaged, r".*run\.db is damaged"),
    (run_of_all, r"every user may write to .* \(mode 0777\)"),
    (run_below_a_file, r"cannot open the run directory .*: not a directory"),
    (data_missing, r".*/none\.npz"),
    (model_not_saved, r"save_model is '/none/model\.safetensors"),
    (few_descriptors, r"\d+ connections need \d+ open files, and this system allows 200"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("condition", "message"), CONDITIONS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_process_that_cannot_start_ends_with_one_message_and_code_2(
    tmp_path: Path, server_keys: dict[str, str], condition: Callable[..., Any], message: str
) -> None:
    with ExitStack() as stack:
        settings = stack.enter_context(condition(kept(tmp_path, server_keys)))
        (tmp_path / "unstale.yaml").write_text(resolved(settings), encoding="utf-8")
        limited = ["sh", "-c", 'ulimit -n 200 && exec "$@"', "sh"] if condition is few_descriptors else []
        command = [sys.executable, "-m", "unstale", "server", "--config", str(tmp_path / "unstale.yaml")]
        ended = subprocess.run(
            [*limited, *command], capture_output=True, text=True, check=False, timeout=START_S, cwd=tmp_path
        )
    assert ended.returncode == 2, ended
    last = ended.stderr.splitlines()[-1]
    assert re.match(rf"unstale: {message}", last), ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
