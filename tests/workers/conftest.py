"""Two machines of a Ray cluster, and a gate at which processes that compute with a model wait."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support import apps
from workers.gated_model import FOLDER

HERE = Path(__file__).parent
PATIENCE_S = 60.0  # upper limit of a wait, after which the test fails


class Gate:
    """Pauses processes that compute with the model."""

    def __init__(self, folder: Path) -> None:
        for file in folder.iterdir():
            file.unlink()
        self._closed = folder / "closed"
        os.mkfifo(folder / "waiting")
        os.mkfifo(self._closed)
        self._arrivals = os.open(folder / "waiting", os.O_RDWR | os.O_NONBLOCK)
        self._waiting: set[int] = set()

    def open(self) -> None:
        if self._closed.exists():
            writer = os.open(self._closed, os.O_RDWR)
            self._closed.unlink()
            os.close(writer)  # end of file for the readers

    def end(self) -> None:
        self.open()
        os.close(self._arrivals)

    def waiting(self, count: int = 1) -> set[int]:
        """The waiting processes, once there are so many."""
        while len(self._waiting) < count:
            ready, _, _ = select.select([self._arrivals], [], [], PATIENCE_S)
            assert ready, f"no {count} workers wait at the gate"
            self._waiting |= {int(number) for number in os.read(self._arrivals, 4096).split()}
        return self._waiting

    def kill(self) -> None:
        """Kill the waiting process."""
        (number,) = self.waiting()
        os.kill(number, signal.SIGKILL)
        self._waiting.remove(number)


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Environment of every process, with the folders of the gate and of the apps' data."""
    folder, tables = tmp_path_factory.mktemp("gate"), tmp_path_factory.mktemp("tables")
    apps.write_tables(tables, clients=4)
    # Ray's sockets are in it, and the path of a socket must be short.
    with (
        pytest.MonkeyPatch.context() as patch,
        TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as ray_folder,
    ):
        patch.setenv("RAY_TMPDIR", ray_folder)
        patch.setenv(FOLDER, str(folder))
        patch.setenv(apps.FOLDER, str(tables))
        patch.setenv("PYTHONPATH", str(HERE.parent))
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield folder


@pytest.fixture(scope="module")
def nodes(surroundings: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, HERE / "two_nodes.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    yield process
    process.stdin.close()
    try:
        process.wait(30)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def address(nodes: subprocess.Popen[str]) -> str:
    line = next((line for line in nodes.stdout if line.startswith("address ")), None)
    assert line is not None, "the cluster did not start"
    return line.split()[1]


def remove(nodes: subprocess.Popen[str], count: int) -> None:
    """Kill so many of the machines."""
    nodes.stdin.write(f"{count}\n")
    nodes.stdin.flush()
    assert nodes.stdout.readline() == "left\n"


@pytest.fixture
def gate(surroundings: Path) -> Iterator[Gate]:
    closed = Gate(surroundings)
    yield closed
    closed.end()
