"""The folder of the cache of data sets."""

from pathlib import Path

import pytest

from unstale.cli import main
from unstale.errors import UserError
from unstale.training.datasets import load
from unstale.training.datasets.source import cache_folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "home"


def test_the_cache_is_in_xdg_cache_home(home: Path, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "xdg" / "unstale"


@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_without_a_usable_xdg_cache_home_it_is_in_the_home_folder(
    value: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert cache_folder() == home / ".cache" / "unstale"


def test_a_cache_in_the_home_folder_is_still_found(home: Path) -> None:
    (home / ".cache" / "unstale").mkdir(parents=True)
    assert cache_folder() == home / ".cache" / "unstale"


def test_of_two_caches_that_in_xdg_cache_home_is_used(home: Path, tmp_path: Path) -> None:
    (home / ".cache" / "unstale").mkdir(parents=True)
    (tmp_path / "xdg" / "unstale").mkdir(parents=True)
    assert cache_folder() == tmp_path / "xdg" / "unstale"


def test_a_cache_that_is_named_is_that_one(home: Path, tmp_path: Path) -> None:
    assert cache_folder(str(tmp_path / "mine")) == tmp_path / "mine"
    assert cache_folder("~/mine") == home / "mine"


def test_messages_name_the_folder_that_is_looked_at(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "xdg" / "unstale"
    with pytest.raises(UserError) as raised:
        load("mnist")
    assert str(raised.value) == (
        f"data set 'mnist' is not in {folder}; get it with: unstale data show mnist --download, or set data.download"
    )
    monkeypatch.setenv("COLUMNS", "1000")
    assert main.run(["data", "list"]) == 0
    assert f"in {folder}" in capsys.readouterr().out
    (folder / "MNIST" / "raw").mkdir(parents=True)
    (folder / "MNIST" / "raw" / "train-images-idx3-ubyte").touch()
    assert main.run(["data", "list"]) == 0
    (mnist,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["mnist"]]
    assert mnist.split()[-1] == "yes"
