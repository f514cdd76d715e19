"""`unstale export`: a table of a run as a file, with exactly the numbers of the journal."""

import json
import sqlite3
import sys
from pathlib import Path

import pandas as pd
import pytest

import unstale
from unstale.cli import main

READERS = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
TABLES = ("rounds", "updates", "clients", "evaluations")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, unstale.Run]:
    folder = tmp_path_factory.mktemp("runs") / "one"
    keys = {"clients": 4, "rounds": 3, "policy": "fedbuff", "model": "logreg", "evaluate_clients_every": 1}
    return folder, unstale.simulate(directory=folder, progress=False, **keys)


def exported(*arguments: object) -> int:
    return main.run(["export", *map(str, arguments)])


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert exported(*arguments) == 2
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1
    return printed


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("table", TABLES)
def test_a_file_has_the_numbers_of_the_python_table(
    run: tuple[Path, unstale.Run], tmp_path: Path, table: str, suffix: str
) -> None:
    folder, result = run
    file = tmp_path / f"table{suffix}"
    assert exported(folder, "--to", file, "--table", table) == 0
    expected = getattr(result, table)
    assert len(expected) > 0
    found = READERS[suffix](file)
    pd.testing.assert_frame_equal(found, expected, check_exact=True, check_dtype=False)


def test_rounds_are_those_of_the_journal(run: tuple[Path, unstale.Run], tmp_path: Path) -> None:
    folder, _ = run
    file = tmp_path / "rounds.parquet"
    assert exported(folder, "--to", file) == 0
    with sqlite3.connect(f"file:{folder / 'run.db'}?mode=ro", uri=True) as journal:
        rows = journal.execute("SELECT version, digest FROM rounds ORDER BY version").fetchall()
    found = pd.read_parquet(file)
    assert list(zip(found.version, found.digest, strict=True)) == rows


def test_json_names_the_file(run: tuple[Path, unstale.Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rounds.csv"
    assert exported(run[0], "--to", file, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["file"], printed["table"], printed["rows"]) == (str(file), "rounds", 3)


def test_user_errors(
    run: tuple[Path, unstale.Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = run
    assert "ends with .csv or .parquet" in refusal(capsys, folder, "--to", tmp_path / "rounds.xlsx")
    assert "lies in the run" in refusal(capsys, folder, "--to", folder / "rounds.csv")
    assert "did you mean 'rounds'" in refusal(capsys, folder, "--to", tmp_path / "a.csv", "--table", "round")
    assert "is not the directory of a run" in refusal(capsys, tmp_path, "--to", tmp_path.parent / "a.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'unstale[parquet]'" in refusal(capsys, folder, "--to", tmp_path / "rounds.parquet")
    assert [*tmp_path.iterdir()] == []
