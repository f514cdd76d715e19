"""`unstale data`: properties and downloads of data sets."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from unstale.cli import data, main
from unstale.training.datasets import CACHE, DATASETS


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Two classes of 2x2 images, half of their pixels 0 and half 255, by three writers."""
    path = tmp_path / "own.npz"
    images = np.array([[[0, 255], [0, 255]]] * 4, dtype=np.uint8)
    np.savez(
        path,
        x_train=images[:3],
        y_train=[0, 1, 1],
        x_test=images[:1],
        y_test=[1],
        writer_train=["b", "a", "c"],
        writer_test=["a"],
    )
    return path


def test_list_shows_every_data_set_and_the_cached_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte").touch()
    (tmp_path / "matlab").mkdir()
    (tmp_path / "matlab" / "emnist-byclass.mat").touch()
    assert main.run(["data", "list", "--cache", str(tmp_path), "--json"]) == 0
    listed = {entry["name"]: entry["in_cache"] for entry in json.loads(capsys.readouterr().out)}
    assert tuple(listed) == DATASETS
    assert [name for name, there in listed.items() if there] == ["mnist", "emnist-byclass"]
    assert [name for name, there in listed.items() if there is None] == ["digits", "npz", "folder"]
    assert main.run(["data", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in DATASETS)


def test_show_prints_the_properties_of_a_data_set(capsys: pytest.CaptureFixture[str], own: Path) -> None:
    assert main.run(["data", "show", "npz", "--path", str(own), "--column", "writer", "--json"]) == 0
    # Pixels are 0 and 1: mean 1/2, deviation 1/2.
    assert json.loads(capsys.readouterr().out) == {
        "name": "own",
        "origin": str(own),
        "train": {"examples": 3, "groups": 3, "label_counts": [1, 2]},
        "test": {"examples": 1, "groups": 1, "label_counts": [0, 1]},
        "classes": 2,
        "shape": [1, 2, 2],
        "stored_as": "uint8",
        "normalisation": {"divisor": 255, "mean": [0.5], "std": [0.5]},
        "mean": [0.0],
        "std": [1.0],
    }


def test_show_prints_it_for_people(capsys: pytest.CaptureFixture[str], own: Path) -> None:
    assert main.run(["data", "show", "npz", "--path", str(own), "--normalise", "unit"]) == 0
    shown = capsys.readouterr().out
    for line in (
        "examples      3 training, 1 test",
        "shape         1x2x2, stored as uint8",
        "normalised    x / 255",
        "training part: mean 0.5000, deviation 0.5000",
        "groups        none",
    ):
        assert line in shown
    assert main.run(["data", "show", "npz", "--path", str(own), "--column", "writer"]) == 0
    shown = capsys.readouterr().out
    assert "normalised    (x / 255 - 0.5000) / 0.5000" in shown
    assert "groups        3 in the training part, 1 in the test part" in shown


def test_many_classes_are_shown_as_a_range(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "many.npz"
    labels = np.concatenate([np.arange(30), [7, 7]])
    np.savez(path, x_train=np.zeros((32, 5)), y_train=labels, x_test=np.zeros((1, 5)), y_test=[3])
    assert main.run(["data", "show", "npz", "--path", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "per class     1 to 3 training, 0 to 1 test; each of them with --json" in shown
    assert "shape         5, stored as float32" in shown


def test_the_command_in_an_error_message_exists(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main.run(["data", "show", "svhn", "--cache", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    command = error.partition("get it with: unstale ")[2].partition(",")[0]
    assert command == f"data show svhn --cache {tmp_path} --download"
    assert main.run([*command.split()[:-1], "--help"]) == 0
    assert "--download" in capsys.readouterr().out


def test_the_cache_is_the_one_that_a_run_uses() -> None:
    assert data.CACHE == CACHE


def test_an_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["data", "shwo"]) == 2
    assert capsys.readouterr().err == "unstale: unknown command 'shwo'; did you mean 'show'?\n"


def test_nothing_heavy_is_loaded_before_a_command_runs() -> None:
    program = "import sys, unstale.cli.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "torchvision", "scipy", "PIL", "sklearn"} & set(loaded)
