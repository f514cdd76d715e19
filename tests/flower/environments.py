"""Environments with a version of Flower each, and `unstale` in them."""

import fcntl
import json
import os
import string
import subprocess
import sys
import tempfile
import threading
import venv
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
APPS = HERE / "apps"
VERSIONS = ("1.21.0", "1.30.0", "1.41.0", "1.42.0")
SECONDS_MAX = 240.0
ROOT = Path(__file__).parents[2]
_PACKAGES = tuple(str(ROOT / folder) for folder in ("services", "proto", "client"))
CACHE = Path(os.environ.get("FLOWER_ENVIRONMENTS", Path(tempfile.gettempdir()) / "unstale-flower"))


def python_of(version: str) -> Path:
    """Python of an environment with a version of Flower before our own packages, made on the first call."""
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = CACHE / version
    python = folder / "bin" / "python"
    with (CACHE / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            venv.create(folder, with_pip=True, clear=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", f"flwr=={version}"], check=True)
            (site,) = folder.glob("lib/python*/site-packages")
            ours = [path for path in sys.path if path.endswith("site-packages")]
            (site / "z_behind.pth").write_text("\n".join((*ours, "")))
            (folder / "complete").touch()
    return python


class Flower:
    """Commands in the environment of a version. folder: with apps, and working directory."""

    def __init__(self, version: str) -> None:
        self.python = python_of(version)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("UNSTALE_")}
        return kept | {
            "PYTHONPATH": os.pathsep.join((*_PACKAGES, str(HERE / "stub"), ".")),
            "FLWR_TELEMETRY_ENABLED": "0",
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
