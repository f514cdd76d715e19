"""The example of a regression on private tables, in simulation, over sockets, and in one place."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes import Process
from unstale.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples/regression"
APP = ("--app", "diabetes:app", "--lr", "0.01", "--evaluate-clients-every", "5", "--device", "cpu")
CONSTANT = 58.7  # error of the mean of the targets


def copied(folder: Path, *clients: int, source: Path | None = None) -> Path:
    """A machine with the example, and the tables of these clients only."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "__pycache__"))
    (folder / "data").mkdir()
    for client in clients if source is not None else ():
        shutil.copy(source / f"data/{client}.csv", folder / "data")
    return folder


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with all tables."""
    folder = copied(tmp_path_factory.mktemp("one") / "regression")
    subprocess.run([sys.executable, "tables.py", "data"], cwd=folder, check=True)
    return folder


def finished(process: Process) -> dict[str, Any]:
    while (fact := process.fact())["event"] != "finished":
        pass
    return fact


def test_the_tables_divide_all_patients(machine: Path) -> None:
    rows = [line for client in range(4) for line in (machine / f"data/{client}.csv").read_text().splitlines()]
    assert len(rows) == len(set(rows)) == 442


def test_the_code_of_the_user_is_short() -> None:
    assert len((EXAMPLE / "diabetes.py").read_text().splitlines()) <= 40


def test_a_simulation_learns_as_well_as_one_place(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(machine)
    monkeypatch.setattr(sys, "path", [str(machine), *sys.path])
    arguments = ("--clients", "4", "--rounds", "50", "--trigger", "sync", "--policy", "fedavg", "--json")
    assert main.run(["simulate", *APP, *arguments]) == 0
    run = json.loads(capsys.readouterr().out.splitlines()[-1])
    federated = run["client_metrics"]["mae"]["mean"]
    in_one_place = importlib.import_module("central").error()
    assert abs(federated - in_one_place) < 2
    assert max(federated, in_one_place) < 0.75 * CONSTANT


@pytest.mark.slow
@pytest.mark.network
def test_machines_with_one_table_each_learn_over_sockets(machine: Path, tmp_path: Path) -> None:
    server_folder = copied(tmp_path / "server")
    folders = [copied(tmp_path / str(client), client, source=machine) for client in range(2)]
    arguments = (*APP, "--clients", "2", "--rounds", "30", "--trigger", "sync", "--json")
    free = ("--address", "tcp://127.0.0.1:0", "--server.http-address", "null")
    with Process("server", *arguments, *free, folder=server_folder) as server:
        address = server.fact()["address"]
        join = ("client", "--app", "diabetes:app", "--server", address, "--device", "cpu", "--first")
        with Process(*join, "0", folder=folders[0]) as first, Process(*join, "1", folder=folders[1]) as second:
            over_sockets = finished(server)
            assert (first.end(), second.end(), server.end()) == (0, 0, 0)
    assert over_sockets["updates"] == {"accepted": 60, "duplicate": 0, "rejected": 0}
    assert over_sockets["client_metrics"]["mae"]["mean"] < 0.85 * CONSTANT
    assert json.dumps(over_sockets["metrics"]) == "{}"  # the server has no data
