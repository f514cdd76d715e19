"""The examples, each in a folder of its own as on a machine of its own."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.processes import Process

EXAMPLES = Path(__file__).parents[2] / "examples"
CODE_MAX = 40  # lines that a user writes


def lines_of_code(name: str, file: str) -> int:
    """The lines of a file that are neither empty nor comments, which the README of its example counts, too."""
    lines = map(str.strip, (EXAMPLES / name / file).read_text().splitlines())
    return sum(1 for line in lines if line and not line.startswith("#"))


def counted(name: str) -> int:
    """The lines of code that the README of an example names."""
    found = re.search(r"(\d+)\slines\sof\scode", (EXAMPLES / name / "README.md").read_text())
    assert found is not None
    return int(found[1])


def copied(name: str, folder: Path, *data: Path) -> Path:
    """A folder with an example, and these files of data only."""
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("data", "__pycache__", "*.safetensors"))
    (folder / "data").mkdir()
    for file in data:
        shutil.copy(file, folder / "data")
    return folder


def run_script(folder: Path, *command: str) -> None:
    subprocess.run([sys.executable, *command], cwd=folder, check=True)


def simulated(folder: Path, *arguments: str) -> dict[str, Any]:
    """The outcome of a simulation in a folder."""
    with Process("simulate", *arguments, "--json", "--device", "cpu", folder=folder) as process:
        fact = finished(process)
        assert process.end() == 0
    return fact


def over_sockets(server: tuple[Path, list[str]], clients: list[tuple[Path, list[str]]]) -> dict[str, Any]:
    """The outcome of a run with a process for the server and for each client, each with its folder and options."""
    folder, arguments = server
    free = ("--address", "tcp://127.0.0.1:0", "--server.http-address", "null", "--json", "--device", "cpu")
    with ExitStack() as stack:
        process = stack.enter_context(Process("server", *arguments, *free, folder=folder))
        join = ("client", "--server", process.fact()["address"], "--device", "cpu")
        started = [stack.enter_context(Process(*join, *own, folder=where)) for where, own in clients]
        fact = finished(process)
        assert [each.end() for each in (*started, process)] == [0] * (len(clients) + 1)
    return fact


def finished(process: Process) -> dict[str, Any]:
    """The last line of a run."""
    while (fact := process.fact())["event"] != "finished":
        pass
    return fact


def central(folder: Path, function: str, **arguments: Any) -> float:
    """The value of a function of an example's `central.py`."""
    program = f"import json, central; print(json.dumps(central.{function}(**{arguments!r})))"
    ended = subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, capture_output=True, text=True)
    value: float = json.loads(ended.stdout)
    return value
