"""Environments with a version of Flower each, and `unstale` in them."""

import json
import os
import string
import subprocess
import threading
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from support.environments import ROOT, cache, python_with
from unstale.training import datasets
from unstale_proto import codec
from unstale_proto.messages import Hello, Message

HERE = Path(__file__).parent
APPS = HERE / "apps"
EVERY_VERSION = ("1.21.0", "1.30.0", "1.41.0", "1.42.0")
VERSIONS = EVERY_VERSION if os.environ.get("FLOWER") == "all" else (EVERY_VERSION[0], EVERY_VERSION[-1])
"""The oldest and the newest one that are supported; with `make test-flower` also some between."""

SECONDS_MAX = 240.0
_PACKAGES = tuple(str(ROOT / folder) for folder in ("services", "proto", "client"))


def python_of(version: str) -> Path:
    """Python of an environment with a version of Flower."""
    return python_with(f"flower-{version}", [f"flwr=={version}"])


@lru_cache(maxsize=1)
def images() -> Path | None:
    """File with images of CIFAR-10 for the quickstart of PyTorch: CIFAR10_NPZ, or out of the cache of unstale."""
    if file := os.environ.get("CIFAR10_NPZ"):
        return Path(file).resolve()
    if not datasets.is_there("cifar10"):
        return None
    train = datasets.load("cifar10", normalise="raw").train
    file = cache() / f"cifar10-{os.getpid()}.npz"
    np.savez(file, x_train=train.stored_NX.permute(0, 2, 3, 1)[::50], y_train=train.labels_N[::50])
    return file.replace(cache() / "cifar10.npz")


class Flower:
    """Commands in an environment with flwr. python: of the environment. folder: with apps, and working directory."""

    def __init__(self, python: Path) -> None:
        self.python = python

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("UNSTALE_")}
        return kept | {
            "PYTHONPATH": os.pathsep.join((*_PACKAGES, str(HERE / "stub"), ".")),
            "FLWR_TELEMETRY_ENABLED": "0",
            "CIFAR10_NPZ": str(images() or ""),
        }

    def script(self, folder: Path, *command: str) -> Any:
        """The JSON that a script prints last."""
        return json.loads(self._output(folder, [str(self.python), *command]).splitlines()[-1])

    def simulate(self, folder: Path, *arguments: str) -> dict[str, Any]:
        """The outcome of a simulation."""
        output = self._output(folder, [*self._unstale("simulate"), *arguments, "--json"])
        fact: dict[str, Any] = next(
            fact for line in output.splitlines() if (fact := json.loads(line))["event"] == "finished"
        )
        return fact

    def fails(self, folder: Path, *arguments: str) -> str:
        """The messages of a command that fails."""
        ended = subprocess.run(
            [str(self.python), "-m", "unstale", *arguments],
            cwd=folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert ended.returncode != 0
        return ended.stderr

    def over_sockets(self, folder: Path, clients: int, app: list[str], arguments: list[str]) -> dict[str, Any]:
        """The outcome of a run of a server and a process for each client."""
        with ExitStack() as stack:
            server = self.server(stack, folder, *app, *arguments, "--clients", str(clients))
            address = fact_of(server)["address"]
            for client in range(clients):
                self.client(stack, folder, address, client, *app, "--num-partitions", str(clients))
            return outcome_of(server)

    def server(self, stack: ExitStack, folder: Path, *arguments: str, port: int = 0) -> "subprocess.Popen[str]":
        where = ("--address", f"tcp://127.0.0.1:{port}", "--server.http-address", "null", "--json")
        return self._started(stack, folder, "server", *arguments, *where)

    def client(
        self, stack: ExitStack, folder: Path, address: str, client: int, *arguments: str
    ) -> "subprocess.Popen[str]":
        where = ("--server", address, "--client.directory", f"client-{client}", "--partition-id", str(client))
        return self._started(stack, folder, "client", *arguments, *where)

    def _started(self, stack: ExitStack, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [str(self.python), "-m", "unstale", *arguments],
            cwd=folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        timer = threading.Timer(SECONDS_MAX, process.kill)
        timer.start()
        stack.callback(process.__exit__, None, None, None)
        stack.callback(process.kill)
        stack.callback(timer.cancel)
        return process

    def _unstale(self, command: str) -> list[str]:
        return [str(self.python), "-m", "unstale", command]

    def _output(self, folder: Path, command: list[str]) -> str:
        ended = subprocess.run(
            command, cwd=folder, env=self._environment(), capture_output=True, text=True, timeout=SECONDS_MAX
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


def fact_of(server: "subprocess.Popen[str]") -> dict[str, Any]:
    """The next line of a server."""
    assert server.stdout is not None
    fact: dict[str, Any] = json.loads(server.stdout.readline())
    return fact


def reaches(server: "subprocess.Popen[str]", version: int) -> None:
    """Wait until a server has reported a version."""
    while fact_of(server).get("version", 0) < version:
        pass


def hears_hello(port: int, client_id: int) -> None:
    """Wait, in place of the server, until a client has connected."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listener:
        listener.bind(f"tcp://127.0.0.1:{port}")
        message: Message | None = None
        while not (isinstance(message, Hello) and message.client_id == client_id):
            assert listener.poll(SECONDS_MAX * 1000), f"client {client_id} does not connect"
            message = codec.decode(listener.recv_multipart()[1])


def outcome_of(server: "subprocess.Popen[str]") -> dict[str, Any]:
    """The last line of a run."""
    while (fact := fact_of(server))["event"] != "finished":
        pass
    return fact


def templates() -> Path:
    """The templates of `flwr new`, which wheels of later versions do not have."""
    (folder,) = (python_of("1.21.0").parents[1]).glob("lib/python*/site-packages/flwr/cli/new/templates/app")
    return folder


def new_app(kind: str, folder: Path) -> None:
    """The app that `flwr new quick --framework KIND` of 1.21 writes, by the rules of its `new.py`."""
    values = {"framework_str": kind, "import_name": "quick", "package_name": "quick", "project_name": "quick"}
    files = {"pyproject.toml": f"pyproject.{kind}.toml.tpl", "quick/__init__.py": "code/__init__.py.tpl"}
    for name in ("client", "server"):
        files[f"quick/{name}_app.py"] = f"code/{name}.{kind}.py.tpl"
    files["quick/task.py"] = f"code/task.{kind}.py.tpl"
    (folder / "quick").mkdir(parents=True)
    for file, template in files.items():
        text = string.Template((templates() / template).read_text()).substitute(values | {"username": "someone"})
        (folder / file).write_text(text)
