"""A training loop in a process that is killed over and over, and a server that is: nothing is lost or counts twice.

The stored run is read with SQLite alone.
"""

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.processes import START_S, Process, free_port
from support.running import until
from unstale.training.datasets import load

pytestmark = [pytest.mark.network, pytest.mark.slow]

KILLS, SERVER_KILLS, ROUNDS = 20, 2, 1500
PROGRAM = Path(__file__).parent / "numpy_client.py"
ROOT = Path(__file__).parents[2]


def server_command(port: int, run: Path, *more: str) -> Sequence[str]:
    return [
        *("server", "--json", "--address", f"tcp://127.0.0.1:{port}", "--run", str(run)),
        *("--server.http-address", "null", "--server.num-examples-max", "null", "--server.lease-s", "600"),
        *("--server.heartbeat-s", "0.2", "--clients", "1", "--rounds", str(ROUNDS), "--trigger", "async"),
        *("--policy", "fedbuff", "--model", "logreg", "--data", "digits", "--evaluate-every", str(ROUNDS)),
        *("--training", "sgd", "--training.learning-rate", "0.1", *more),
    ]


class Client:
    """Processes of one client, one after another, with one folder and one log."""

    def __init__(self, port: int, folder: Path) -> None:
        digits = load("digits")
        self.log, self.state = folder / "log", folder / "state"
        data = folder / "data.npz"
        inputs_NX = digits.train_examples().numpy().reshape(len(digits.train), -1)
        np.savez(data, inputs_NX=inputs_NX[:200], labels_N=digits.train.labels_N.numpy()[:200])
        self._arguments = [f"tcp://127.0.0.1:{port}", "0", str(self.state), str(data), str(self.log)]

    def start(self) -> "subprocess.Popen[bytes]":
        environment = {"PYTHONPATH": str(ROOT / "client"), "OPENBLAS_NUM_THREADS": "1"}
        return subprocess.Popen([sys.executable, str(PROGRAM), *self._arguments], env=environment)

    def work(self, kills: int) -> None:
        """Take part until the run is over, in a process that is killed so often and restarted."""
        pause = threading.Event()
        for kill in range(kills):
            process = self.start()
            if kill % 4:  # of the others some die before they have joined
                before = len(self.lines())
                until(lambda before=before: len(self.lines()) > before + 2, "updates of the next process")
            pause.wait(0.2 * (kill * 0.618 % 1.0))
            process.send_signal(signal.SIGKILL)
            assert process.wait(START_S) == -signal.SIGKILL, "the run is finished too early"
        assert self.start().wait(START_S) == 0

    def lines(self) -> list[str]:
        return self.log.read_text().split("\n")[:-1] if self.log.exists() else []

    def taken(self) -> dict[int, list[float]]:
        """By number of the task, the losses of the updates that `Task.send` took."""
        taken: dict[int, list[float]] = {}
        for line in self.lines():
            if line != "started":
                number, loss = line.split()
                taken.setdefault(int(number), []).append(float(loss))
        return taken


def rows(run: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(run / "run.db") as stored:
        found = stored.execute(query).fetchall()
    stored.close()
    return found


def test_a_client_that_is_killed_twenty_times_loses_and_repeats_nothing(tmp_path: Path) -> None:
    port, run = free_port(), tmp_path / "run"
    client = Client(port, tmp_path)
    with Process(*server_command(port, run)) as server:
        server.fact()
        client.work(KILLS)
        assert server.end() == 0

    stored = rows(run, "SELECT number, loss, reason, round FROM updates JOIN tasks USING (task_id) ORDER BY number")
    numbers = [number for number, *_ in stored]
    assert len(numbers) == len(set(numbers)), "an update counts twice"
    assert [(reason, version is None) for *_, reason, version in stored] == [(None, False)] * ROUNDS
    assert rows(run, "SELECT received, aggregated, pending, rejected FROM conservation") == [(ROUNDS, ROUNDS, 0, 0)]
    assert rows(run, "SELECT count(*), count(DISTINCT round) FROM updates") == [(ROUNDS, ROUNDS)]
    taken, losses = client.taken(), {number: loss for number, loss, *_ in stored}
    assert all(len(made) == 1 for made in taken.values()), "a task that was done is trained again"
    assert max(taken) >= max(losses) - 1
    for number, (loss,) in taken.items():
        assert losses.pop(number) == pytest.approx(loss, rel=1e-6), f"the update of task {number} is lost"
    assert len(losses) <= KILLS  # killed between storing an update and the line in the log
    assert sorted(path.name for path in client.state.iterdir()) == ["lock", "starts"]


def test_a_client_that_is_killed_makes_the_same_model_as_one_that_is_not(tmp_path: Path) -> None:
    """An update depends on all earlier ones: by the model, and by numbers that the encoding has left out of them."""
    digests = []
    for kills in (0, KILLS):
        port, folder = free_port(), tmp_path / str(kills)
        folder.mkdir()
        encoding = ("--encoding.updates", "top-k", "--encoding.fraction", "0.05")
        with Process(*server_command(port, folder / "run", *encoding)) as server:
            server.fact()
            Client(port, folder).work(kills)
            while (finished := server.fact())["event"] != "finished":
                pass
            assert server.end() == 0
        assert (finished["updates"]["accepted"], finished["updates"]["rejected"]) == (ROUNDS, 0)
        digests.append(finished["model_digest"])
    assert digests[0] == digests[1]


def test_a_client_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    port, run = free_port(), tmp_path / "run"
    client = Client(port, tmp_path)
    process = client.start()  # before there is a server
    for _ in range(SERVER_KILLS):
        before = len(client.lines())
        with Process(*server_command(port, run)):
            until(lambda before=before: len(client.lines()) > before + 20, "updates")
    with Process(*server_command(port, run)) as server:
        assert process.wait(START_S) == 0
        assert server.end() == 0
    stored = rows(run, "SELECT number, loss FROM updates JOIN tasks USING (task_id) WHERE reason IS NULL")
    assert len({number for number, _ in stored}) == len(stored) == ROUNDS
    taken, losses = client.taken(), dict(stored)
    late = [number for number, made in taken.items() if losses.get(number) != pytest.approx(made[-1], rel=1e-6)]
    assert len(late) <= SERVER_KILLS  # tasks whose server died before it had stored that it gave them
