"""`unstale partition show`: text, JSON and plot."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from unstale.cli import main
from unstale.cli.tables import MOST

SHOW = ["partition", "show", "--data", "npz", "--data.path"]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("UNSTALE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def data(tmp_path: Path) -> str:
    """60 training examples, 20 of each of 3 classes, in this order."""
    file = tmp_path / "three.npz"
    labels = np.repeat(np.arange(3), 20)
    inputs = np.zeros((60, 2), dtype=np.float32)
    np.savez(file, x_train=inputs, y_train=labels, x_test=inputs, y_test=labels)
    return str(file)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run([*SHOW, *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run([*SHOW, *arguments]) == 2
    return capsys.readouterr().err


def test_a_client_is_a_row_with_the_numbers_of_its_classes(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Blocks of 60 / 3 = 20, one class each: two thirds of another class's share away from all: 1 - 1/3.
    text = shown(capsys, data, "--partition", "blocks", "--clients", "3")
    assert text.splitlines()[0] == "blocks, min_examples 8: three for 3 clients, seed 0"
    lines = [line.split() for line in text.splitlines()]
    assert ["client", "examples", "0", "1", "2"] in lines
    rows = sorted(line[1:] for line in lines if line[:1] in (["0"], ["1"], ["2"]))
    assert rows == [["20", "20", "·", "·"], ["20", "·", "20", "·"], ["20", "·", "·", "20"]]
    assert "60 of 60 examples are used\n" in text
    assert "examples per client: 20 to 20, median 20\n" in text
    assert "classes per client: 1 to 1, median 1\n" in text
    assert "mean total variation distance 0.667" in text


def test_of_many_clients_the_first_are_shown_and_all_are_summed_up(
    data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, data, "--partition", "iid", "--clients", "50", "--partition.min-examples", "1")
    assert [line.split()[0] for line in text.splitlines() if line.strip()][3:43] == [
        str(client) for client in range(40)
    ]
    assert "and 10 more clients" in text
    assert "examples per client: 1 to 2, median 1\n" in text


def test_unused_and_shared_examples_are_counted(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--partition.smallest", "2", "--partition.largest", "2", "--partition.pool", "2"]
    text = shown(capsys, data, "--partition", "label-count", "--clients", "30", *few)
    assert "6 of 60 examples are used, 54 are unused, 6 belong to more than one client\n" in text


def test_in_a_narrow_terminal_a_class_is_one_sign(
    data: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    text = shown(capsys, data, "--partition", "blocks", "--clients", "3")
    assert sorted(re.findall(r" 20  ([ █]{3})", text)) == ["  █", " █ ", "█  "]
    assert "a sign for each class: ░ up to a quarter of the client's examples" in text


def test_programs_get_every_client(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = json.loads(
        shown(capsys, data, "--partition", "classes", "--partition.classes", "1", "--clients", "3", "--json")
    )
    assert made["partition"] == {"name": "classes", "classes": 1, "min_examples": 8}
    assert [client["client"] for client in made["clients"]] == [0, 1, 2]
    assert all(client["examples"] == sum(client["counts"]) == 20 for client in made["clients"])
    assert made["summary"]["sizes"] == {"min": 20, "median": 20.0, "max": 20}
    assert made["summary"]["distance"] == pytest.approx(2 / 3)


def test_the_shown_partition_is_that_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    from unstale.config import Settings
    from unstale.config.workspace import training_context

    assert main.run(["partition", "show", "--clients", "7", "--seed", "3", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    trainer = training_context(Settings(clients=7, seed=3)).trainer
    assert [client["examples"] for client in made["clients"]] == [len(share) for share in trainer.partitions.values()]


@pytest.mark.parametrize("clients", [3, 60])
def test_a_picture_is_drawn(clients: int, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from matplotlib.image import imread

    file = tmp_path / "shares.png"
    arguments = ["--clients", str(clients), "--partition.min-examples", "1", "--png", str(file)]
    text = shown(capsys, data, "--partition", "blocks", *arguments)
    assert text.endswith(f"{file}: written\n")
    pixels = np.round(imread(file)[..., :3] * 255).astype(int)
    assert min(pixels.shape[:2]) > 500
    # A third of the cells is all that a client holds, and no cell is anything between that and nothing.
    assert (pixels == MOST).all(axis=-1).mean() > 0.05
    assert (pixels == 255).all(axis=-1).mean() > 0.1


def test_many_clients_are_sorted_by_their_most_common_class() -> None:
    from unstale.cli.partition_plot import IN_ORDER_MAX, _order

    counts_NC = np.array([[1, 3], [9, 1], [0, 5], [5, 5]])
    assert _order(counts_NC).tolist() == [0, 1, 2, 3]
    many_NC = np.concatenate([counts_NC, np.repeat([[1, 0]], IN_ORDER_MAX, axis=0)])
    # Class 0: all of it, nine tenths, a half; class 1: all of it, three quarters.
    assert _order(many_NC).tolist() == [*range(4, IN_ORDER_MAX + 4), 1, 3, 2, 0]


def test_a_file_that_cannot_be_written_is_an_error(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nowhere/shares.png"
    error = refused(capsys, data, "--clients", "2", "--png", str(file))
    assert error == f"unstale: cannot write {file}: no such file or directory\n"


def test_matplotlib_is_imported_for_a_picture_only(data: str) -> None:
    program = (
        "import sys; from unstale.cli.main import run; code = run(sys.argv[1:]); "
        "sys.exit(code or 'matplotlib' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *SHOW, data, "--clients", "2"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--partition classes --clients 2", "unstale: partition 'classes' needs clients * partition.classes"),
        ("--partition iid --alpha 0.5", "unstale: partition 'iid' takes no partition.alpha, got 0.5; leave it out"),
        ("--partition classs", "unstale: unknown partition 'classs'; did you mean 'classes'?"),
        ("--partition natural", "unstale: partition 'natural' needs data that says whose each example is"),
    ],
)
def test_a_partition_that_cannot_be_made_is_one_sentence(
    arguments: str, sentence: str, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, data, *arguments.split())
    assert error.startswith(sentence)
    assert error.count("\n") == 1
