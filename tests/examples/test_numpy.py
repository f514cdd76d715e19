"""The example of logistic regression in NumPy: over sockets without PyTorch, in simulation, and in one place."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import START_S, Process
from unstale.cli import main

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/numpy"
RUN = ("--clients", "4", "--rounds", "50", "--lr", "0.5", "--trigger", "sync", "--policy", "fedavg", "--json")
WITHOUT_TORCH = """
import runpy, sys
sys.modules |= dict.fromkeys(("torch", "unstale", "sklearn", "scipy", "pandas", "safetensors"))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program in which these imports raise ImportError."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its tables."""
    folder = tmp_path_factory.mktemp("one") / "numpy"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "state", "__pycache__"))
    subprocess.run([sys.executable, "tables.py", "data"], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def in_one_place(folder: Path) -> float:
    """Accuracy of a training on all rows."""
    output = subprocess.run([sys.executable, "central.py"], cwd=folder, check=True, capture_output=True, text=True)
    accuracy, constant = (float(part.split()[-1]) for part in output.stdout.split(", "))
    assert (accuracy, constant) == (0.973, 0.536)  # as in the README
    return accuracy


def test_the_tables_divide_all_patients(folder: Path) -> None:
    rows = [line for client in range(4) for line in (folder / f"data/{client}.csv").read_text().splitlines()]
    assert len(rows) == len(set(rows)) == 569


def test_the_code_of_the_user_has_forty_lines() -> None:
    assert len((EXAMPLE / "tumours.py").read_text().splitlines()) == 40


def test_a_simulation_learns_as_well_as_one_place(
    folder: Path, in_one_place: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    assert main.run(["simulate", "--app", "simulated:app", "--evaluate-clients-every", "7", *RUN]) == 0  # after 49
    run = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert run["client_metrics"]["accuracy"]["mean"] == pytest.approx(in_one_place, abs=0.005)


@pytest.mark.slow
@pytest.mark.network
def test_clients_without_torch_learn_as_well_as_one_place(folder: Path, in_one_place: float) -> None:
    free = ("--address", "tcp://127.0.0.1:0", "--server.http-address", "null")
    with Process("server", "--initial", "data/model.safetensors", *RUN, *free, folder=folder) as server:
        address = server.fact()["address"]
        clients = [
            subprocess.Popen(
                [sys.executable, "-c", WITHOUT_TORCH, "tumours.py", address, str(client), f"data/{client}.csv"],
                cwd=folder,
            )
            for client in range(4)
        ]
        assert [client.wait(START_S) for client in clients] == [0, 0, 0, 0]
        while (finished := server.fact())["event"] != "finished":
            pass
        assert server.end() == 0
    assert finished["updates"] == {"accepted": 200, "duplicate": 0, "rejected": 0}
    assert finished["training_metrics"]["accuracy"]["mean"] == pytest.approx(in_one_place, abs=0.005)
    assert sorted(path.name for path in (folder / "state").iterdir()) == ["lock", "starts"]
