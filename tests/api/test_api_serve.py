"""`unstale.serve`: a server in this process, with clients of `unstale.join` over real sockets."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import unstale
from support import line
from support.line import IN_ROUNDS, STEP
from support.running import PATIENCE_S, until

SERVER = {"address": "tcp://127.0.0.1:0", "http_address": None, "linger_s": 0.1}
ARGUMENTS = {name: value for name, value in IN_ROUNDS.items() if name != "scenario"} | {"server": SERVER}

pytestmark = pytest.mark.network


def descend(address: str, client_id: int) -> None:
    """The training of `support.line`, without PyTorch."""
    with unstale.join(address, client_id=client_id, patience_s=PATIENCE_S) as client:
        for task in client:
            weights = {name: value - task.learning_rate * (client_id + 1) for name, value in task.parameters.items()}
            task.send(weights, num_examples=client_id + 1, loss=client_id + 1.0)


def test_clients_that_join_train_the_model_of_a_server(tmp_path: Path) -> None:
    with unstale.serve(line.central, **ARGUMENTS, directory=tmp_path / "run", background=True) as server:
        clients = [threading.Thread(target=descend, args=(server.address, client_id)) for client_id in range(3)]
        for client in clients:
            client.start()
        run = server.wait()
        for client in clients:
            client.join(PATIENCE_S)
    assert run.model["w"].tolist() == pytest.approx([-4 * STEP])
    assert run.metrics == pytest.approx({"value": -4 * STEP, "loss": 1.0})
    assert run.rounds.updates.tolist() == [3, 3, 3, 3]
    again = unstale.serve(line.central, **ARGUMENTS, directory=tmp_path / "run")  # the run has ended
    assert again.digest == run.digest and again.metrics == run.metrics


def test_a_server_that_is_stopped_returns_its_run_so_far(tmp_path: Path) -> None:
    server = unstale.serve(line.central, **ARGUMENTS, directory=tmp_path / "run", background=True)
    server.stop()
    run = server.wait()
    assert len(run.rounds) == 0 and run.model["w"].tolist() == [0]
    assert repr(run).startswith("<Run fedavg, seed 0: 0 rounds")
    assert len(run.plot().axes) >= 1


def test_an_error_is_raised_where_the_server_was_started(tmp_path: Path) -> None:
    server = unstale.serve(line.central, **ARGUMENTS, directory=tmp_path / "run", background=True)
    with server, pytest.raises(unstale.UserError, match="is in use"):
        unstale.serve(line.central, **ARGUMENTS, directory=tmp_path / "run")
    with pytest.raises(unstale.UserError, match="argument clients: clients is 0"):
        unstale.serve(line.central, clients=0)


def test_an_interrupt_of_the_start_ends_the_server_and_its_run_can_be_resumed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "serve":
            until(lambda: "protocol" in [one.name for one in threading.enumerate()])
            raise KeyboardInterrupt

    arguments = {**ARGUMENTS, "directory": str(tmp_path / "run")}
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            unstale.serve(line.central, **arguments)
    with unstale.serve(line.central, **arguments, background=True) as server:
        server.stop()
        assert len(server.wait().rounds) == 0


def test_an_interrupt_ends_the_server_and_its_run_can_be_resumed(tmp_path: Path) -> None:
    code = f"""
import os, signal, threading, unstale
from support import line
from support.running import until

def interrupt():
    until(lambda: "protocol" in [thread.name for thread in threading.enumerate()])
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
arguments = dict({ARGUMENTS!r}, directory={str(tmp_path / "run")!r})
threading.Thread(target=interrupt).start()
try:
    unstale.serve(line.central, **arguments)
except KeyboardInterrupt:
    server = unstale.serve(line.central, **arguments, background=True)
    server.stop()
    print(len(server.wait().rounds))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0\n", "")
