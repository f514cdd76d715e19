"""Two client processes with a file each, and a server process that opens neither, make the model of the simulation."""

import shutil
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from backbone.test_twin import Trace, simulated
from support import apps
from support.processes import Process
from support.proxy import Proxy, Swallows
from unstale.config import Settings
from unstale.seeds import Stream, stream
from unstale_proto.messages import Ack, Message, Task, Update

pytestmark = pytest.mark.network

CLIENTS, ROUNDS = 2, 6
TESTS = Path(__file__).parents[1]

TRACER = """
import os, sys

out = os.open(os.environ["OPENED_FILES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def hook(event, arguments):
    if event in ("open", "mmap.__new__", "os.listdir", "os.scandir"):
        os.write(out, f"{arguments[0]}\\n".encode(errors="surrogateescape"))

sys.addaudithook(hook)
"""
"""A `sitecustomize` that writes down the names of all files that its process opens."""


class Order:
    """Lets updates pass in the order of `arrivals`, the first one after all clients have a task. Others are lost, so
    that their clients send them again.
    """

    def __init__(self, arrivals: list[int]) -> None:
        self._arrivals = arrivals
        self._lock = threading.Lock()
        self._started: set[int] = set()
        self._answered: set[int] = set()  # tasks

    def of(self, client_id: int) -> Swallows:
        """For the connection of a client."""

        def swallows(message: Message, up: bool) -> bool:
            with self._lock:
                if isinstance(message, Task):
                    self._started.add(client_id)
                elif isinstance(message, Ack):
                    self._answered.add(message.task_id)
                elif isinstance(message, Update):
                    now = self._arrivals[len(self._answered) :][:1]
                    return len(self._started) < CLIENTS or now != [client_id]
            return False

        return swallows


COMMON: dict[str, Any] = {
    "clients": CLIENTS,
    "rounds": ROUNDS,
    "seed": 3,
    "device": "cpu",
    "evaluate_every": 1,
    "evaluate_clients_every": 2,
    "trigger": {"name": "async"},
    "policy": {"name": "fedasync"},
    "run": {"durability": "off"},
    "server": {
        "address": "tcp://127.0.0.1:0",
        "http_address": None,
        "heartbeat_s": 0.1,
        "lease_s": 120.0,
        "linger_s": 5.0,
    },
}


def write_tables(folder: Path) -> None:
    """Rows of y = 3 x0 - x1 + 2, others for each client."""
    drawn = stream(5, Stream.PARTITION)
    for client_id in range(CLIENTS):
        x = drawn.normal(client_id, 1.0, (30 + 15 * client_id, 2))
        np.save(folder / f"{client_id}.npy", np.column_stack([x, 3 * x[:, 0] - x[:, 1] + 2]).astype(np.float32))


OBJECTIVE = {
    "model": {"name": "support.factories:plane"},
    "objective": {"name": "regression"},
    "training": {"steps": 3, "batch_size": 8},
}
APP = {"app": "support.apps:regression", "training": {"learning_rate": 0.125}}


def settings_for(level: str, tables: Path, folders: list[Path]) -> tuple[dict[str, Any], ...]:
    """Of the simulation, of the server, and of each client."""
    if level == "app":
        return tuple([COMMON | APP] * (2 + CLIENTS))
    common = COMMON | OBJECTIVE
    all_tables = {"private": True, "name": "support.factories:all_tables", "path": str(tables)}
    own = [
        {"private": True, "name": "support.factories:own_table", "path": str(folder / f"{client_id}.npy")}
        for client_id, folder in enumerate(folders)
    ]
    in_simulation = common | {"data": all_tables, "partition": {"name": "column"}}
    return in_simulation, common | {"data": {"private": True}}, *(common | {"data": data} for data in own)


@pytest.mark.parametrize("level", ["objective", "app"])
def test_private_files_make_the_model_of_the_simulation_and_the_server_opens_none(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, traced = tmp_path / "tables", tmp_path / "traced"
    folders = [tmp_path / f"private-{client_id}" for client_id in range(CLIENTS)]
    for folder in (tables, traced, *folders):
        folder.mkdir()
    if level == "app":
        apps.write_tables(tables, CLIENTS)
    else:
        write_tables(tables)
    in_simulation, of_server, *of_clients = settings_for(level, tables, folders)

    monkeypatch.setenv(apps.FOLDER, str(tables))
    trace = Trace()
    expected = simulated(Settings(**in_simulation), trace)
    for client_id, folder in enumerate(folders):
        (file,) = tables.glob(f"{client_id}.*")
        shutil.move(file, folder)  # the only copy

    (traced / "sitecustomize.py").write_text(TRACER)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("OPENED_FILES", str(tmp_path / "opened"))
    monkeypatch.setenv(apps.FOLDER, "/nowhere")
    (tmp_path / "server.yaml").write_text(yaml.safe_dump(of_server))
    order = Order(trace.arrivals)
    with ExitStack() as stack:
        command = ("server", "--config", str(tmp_path / "server.yaml"), "--json")
        server = stack.enter_context(Process(*command, python_path=traced))
        address = server.fact()["address"]
        clients = []
        for client_id, (folder, settings) in enumerate(zip(folders, of_clients, strict=True)):
            proxy = stack.enter_context(Proxy(address, order.of(client_id)))
            own = {"server": proxy.address, "first": client_id, "count": 1, "directory": str(folder / "state")}
            (folder / "client.yaml").write_text(yaml.safe_dump(settings | {"client": own}))
            monkeypatch.setenv(apps.FOLDER, str(folder))
            clients.append(stack.enter_context(Process("client", "--config", str(folder / "client.yaml"))))
        while (fact := server.fact())["event"] != "finished":
            pass
        assert [process.end() for process in (*clients, server)] == [0, 0, 0]

    assert fact["model_digest"] == expected.model_digest
    assert fact["updates"]["accepted"] == expected.updates["accepted"] == ROUNDS
    assert {name: spread["mean"] for name, spread in fact["client_metrics"].items()} == {
        name: spread.mean for name, spread in expected.client_metrics.items()
    }
    assert "mae" in expected.client_metrics and fact["metrics"] == {}
    opened = (tmp_path / "opened").read_text().splitlines()
    assert any(path.endswith("server.yaml") for path in opened)  # the tracer sees what the server opens
    assert any("factories" in path or "apps" in path for path in opened)  # its model is code of the user
    assert not [path for path in opened if "private-" in path or path.endswith((".npy", ".npz"))]
