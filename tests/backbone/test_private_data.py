"""Runs of private data: each client trains on a file of its own, and the server reads none."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backbone.test_twin import Trace, simulated, through_sockets
from support.processes import START_S, Process
from support.running import RunningServer
from unstale.client.workspace import training_context_of
from unstale.config import Settings
from unstale.config.workspace import make_workspace
from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.server.welcome import welcome
from unstale_proto import codec
from unstale_proto.messages import PartitionPlan, Welcome

ROWS = (30, 45)  # of each client's file
CLIENTS = len(ROWS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files with different rows of y = 3 x0 - x1 + 2, and a folder for other things."""
    drawn = stream(5, Stream.PARTITION)
    for client_id, rows in enumerate(ROWS):
        x = drawn.normal(client_id, 1.0, (rows, 2))
        table = np.column_stack([x, 3 * x[:, 0] - x[:, 1] + 2]).astype(np.float32)
        np.save(tmp_path / f"{client_id}.npy", table)
    return tmp_path


def settings_of(data: dict[str, Any], **changes: Any) -> Settings:
    given: dict[str, Any] = {
        "clients": CLIENTS,
        "rounds": 12,
        "evaluate_every": 4,
        "evaluate_clients_every": 4,
        "seed": 3,
        "model": {"name": "support.factories:plane"},
        "objective": {"name": "regression"},
        "training": {"steps": 3, "batch_size": 8},
        "trigger": {"name": "async"},
        "policy": {"name": "fedasync"},
        "server": {"address": "tcp://127.0.0.1:0", "http_address": None, "linger_s": 5.0},
        "run": {"durability": "off"},
        "data": data,
    }
    return Settings(**{**given, **changes})


def server_settings(**changes: Any) -> Settings:
    return settings_of({"private": True}, **changes)


def client_settings(folder: Path, client_id: int, **changes: Any) -> Settings:
    data = {"private": True, "name": "support.factories:own_table", "path": str(folder / f"{client_id}.npy")}
    return settings_of(data, client={"first": client_id, "count": 1}, **changes)


def simulation_settings(folder: Path, **changes: Any) -> Settings:
    data = {"private": True, "name": "support.factories:all_tables", "path": str(folder)}
    return settings_of(data, partition={"name": "column"}, **changes)


@pytest.mark.network
@pytest.mark.parametrize("name", ["sgd", "gradient", "scaffold"])
def test_clients_with_files_of_their_own_make_the_model_of_the_simulation(folder: Path, name: str) -> None:
    policy = {"name": "scaffold" if name == "scaffold" else "fedasync"}
    changes = {"training": {"name": name, "batch_size": 8}, "policy": policy}
    trace = Trace()
    in_simulation = simulated(simulation_settings(folder, **changes), trace)
    own = {client_id: client_settings(folder, client_id, **changes) for client_id in range(CLIENTS)}
    over_sockets = through_sockets(server_settings(**changes), trace.arrivals, own=own)
    assert over_sockets.model_digest == in_simulation.model_digest
    assert over_sockets.updates == in_simulation.updates == {"accepted": 12, "duplicate": 0, "rejected": 0}
    assert over_sockets.metrics == in_simulation.metrics == {}
    assert over_sockets.client_metrics == in_simulation.client_metrics
    assert set(in_simulation.client_metrics) == {"mae", "loss", "r2"}


@contextmanager
def watched_opens() -> Iterator[list[str]]:
    """The paths that this process opens, by Python or below it, while the context lasts."""
    opened: list[str] = []
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in ("open", "os.open", "mmap.__new__", "os.listdir", "os.scandir"):
            opened.append(str(arguments[0]))

    sys.addaudithook(hook)  # stays until the process ends
    try:
        yield opened
    finally:
        watching = False


@pytest.mark.network
def test_the_server_opens_no_file_of_a_client(folder: Path) -> None:
    with watched_opens() as opened:
        (folder / "opened-by-this-process").write_text("")
        with RunningServer(server_settings()) as server, ExitStack() as stack:
            clients = [
                stack.enter_context(
                    Process(
                        *("client", "--server", server.address, "--first", str(client_id), "--count", "1"),
                        *("--client.directory", str(folder / f"state-{client_id}")),
                        *("--model", "support.factories:plane", "--data", "support.factories:own_table"),
                        *("--data.path", str(folder / f"{client_id}.npy"), "--data.private"),
                        python_path=Path(__file__).parents[1],
                    )
                )
                for client_id in range(CLIENTS)
            ]
            outcome = server.end(START_S)
            assert [client.end() for client in clients] == [0, 0]
    assert (outcome.reason, outcome.versions) == ("finished", 12)
    assert sum("opened-by-this-process" in path for path in opened) == 1  # the hook sees what is opened
    assert not [path for path in opened if path.endswith(".npy")]


def server_welcome(settings: Settings) -> Welcome:
    message = welcome(settings, make_workspace(settings).model, extra=False, labels=None)
    received = codec.decode(codec.encode(message))
    assert isinstance(received, Welcome)
    return received


def test_the_welcome_names_neither_data_nor_partition() -> None:
    received = server_welcome(server_settings())
    assert (received.data, received.partition, received.data_plan) == ("private", PartitionPlan(name="private"), None)


def test_the_data_of_a_process_is_shared_out_among_its_clients_alone(folder: Path) -> None:
    received = server_welcome(server_settings(clients=9))
    own = client_settings(folder, 1, partition={"name": "iid"}).model_copy(
        update={"client": Settings(client={"first": 4, "count": 3}).client}
    )
    trainer = training_context_of(received, own).trainer
    train = ROWS[1] - ROWS[1] // 3
    held = [trainer.examples(client_id) for client_id in (4, 5, 6)]
    assert list(map(len, held)) == [train // 3] * 3
    rows = sorted(tuple(row) for examples in held for row in examples.batch(torch.arange(len(examples)))[0].tolist())
    file = np.load(folder / "1.npy")
    assert rows == sorted(tuple(row) for row in file[np.arange(len(file)) % 3 != 2, :2].tolist())
    with pytest.raises(KeyError):
        trainer.examples(0)


def test_a_server_may_have_test_data(folder: Path) -> None:
    data = {"private": True, "name": "support.factories:own_table", "path": str(folder / "0.npy")}
    workspace = make_workspace(settings_of(data))
    assert workspace.client_data is None
    assert workspace.test_data is not None and workspace.test_data.has("test")


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({}, "the server's run is of private data, but this client names none; name its own with data.name"),
        ({"name": "support.factories:own_table", "path": "/nowhere.npy"}, "nowhere.npy"),
        ({"name": "digits"}, "model 'support.factories:plane' cannot be trained with the data set's examples"),
    ],
)
def test_a_client_without_data_of_its_own_is_told_so(own: dict[str, Any], message: str) -> None:
    with pytest.raises((UserError, FileNotFoundError), match=message):
        training_context_of(server_welcome(server_settings()), settings_of(own, client={"first": 0, "count": 1}))


def test_private_data_of_a_client_is_not_chosen_by_a_server(folder: Path) -> None:
    received = server_welcome(Settings(model={"name": "logreg"}))
    with pytest.raises(UserError, match=r"names data set 'digits', but data\.private is true on this machine"):
        training_context_of(received, client_settings(folder, 0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "logreg"}}, "model.name is 'logreg', whose size depends on the data, but data.private"),
        ({"model": {"name": "support.factories:line"}}, "expected a function that needs no arguments"),
    ],
)
def test_a_server_without_data_needs_a_model_that_needs_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_workspace(server_settings(**changes))
