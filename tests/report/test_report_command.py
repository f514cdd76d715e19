"""`unstale report`: files, output and errors."""

import hashlib
import json
import os
import re
import sqlite3
from pathlib import Path

import pytest

from report.made import compensated, curve, run, small_run
from unstale.cli import main

FULL = Path("/dev/full")  # a device that is always full
DOCUMENT = Path(__file__).parents[2] / "docs/report.md"


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return run(tmp_path / "one", small_run())


def written(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main.run(["report", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main.run(["report", *map(str, arguments)]) == 2
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1
    return printed


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_page_tables_and_pictures_are_written(one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, tables, pictures = tmp_path / "out.html", tmp_path / "csv", tmp_path / "png"
    printed = written(capsys, one, "--out", out, "--csv", tables, "--png", pictures, "--target", 0.5)
    assert printed.splitlines()[-1] == f"{out}: written"
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert (tables / "evaluations.csv").read_text(encoding="utf-8").startswith("run,version,elapsed_s,")
    assert (pictures / "accuracy_over_versions.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_left_as_it_is(one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(one)
    written(capsys, one, "--out", tmp_path / "out.html")
    assert contents(one) == before


def test_json_lists_files_and_notes(one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.html"
    printed = json.loads(written(capsys, one, "--out", out, "--csv", tmp_path / "csv", "--json"))
    assert (printed["event"], printed["page"], printed["pictures"]) == ("reported", str(out), [])
    assert all(Path(file).exists() for file in printed["tables"])
    assert printed["notes"] == ["Simulated: all times are seconds of virtual time."]


def test_groups_are_made_and_named_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run(tmp_path / str(rounds), curve(0.5), rounds=rounds) for rounds in (2, 3)]
    out = tmp_path / "out.html"
    written(capsys, *runs, "--out", out, "--by", "policy.name", "--label", "both")
    assert "both (n = 2)" in out.read_text(encoding="utf-8")


def test_a_directory_that_cannot_be_read_is_one_error_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not the directory of a run" in refusal(capsys, tmp_path, "--out", tmp_path.parent / "x.html")
    path = run(tmp_path / "run", curve(0.5))
    with sqlite3.connect(path / "run.db") as database:
        database.execute("UPDATE evaluations SET evaluate_s = 0.75")
    database.close()
    assert "run.db is damaged (evaluations version 0 does not match its checksum)" in refusal(
        capsys, path, "--out", tmp_path / "x.html"
    )


def test_destinations_are_checked_before_runs_are_read(
    one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_file = tmp_path / "file"
    a_file.write_text("")
    nowhere = tmp_path / "no/where"
    assert "--out is" in refusal(capsys, one, "--out", tmp_path)
    assert "--out is" in refusal(capsys, one, "--out", nowhere / "x.html")
    assert "which is a file, expected a folder" in refusal(capsys, one, "--out", tmp_path / "x.html", "--csv", a_file)
    assert f"make {nowhere} first" in refusal(capsys, one, "--out", tmp_path / "x.html", "--png", nowhere / "png")
    assert not (tmp_path / "x.html").exists()


def test_nothing_is_written_into_a_run(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(one)
    assert "runs are only read" in refusal(capsys, one, "--out", one / "config.yaml")
    assert "runs are only read" in refusal(capsys, one, "--out", one.parent / "x.html", "--csv", one / "segments")
    assert contents(one) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_reported(
    one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert "permission denied" in refusal(capsys, one, "--out", locked / "x.html")


@pytest.mark.skipif(not FULL.exists(), reason=f"there is no {FULL}")
def test_a_full_disk_is_reported(one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.html").symlink_to(FULL)
    assert "the disk is full; make room" in refusal(capsys, one, "--out", tmp_path / "x.html")


def test_every_table_and_column_is_in_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        run(tmp_path / "one", small_run()),
        run(tmp_path / "two", compensated(), policy={"name": "dynsgd"}, compensator={"name": "first-order"}),
    ]
    written(capsys, *runs, "--out", tmp_path / "x.html", "--csv", tmp_path / "csv", "--target", 0.5)
    text = DOCUMENT.read_text(encoding="utf-8")
    printed = dict(re.findall(r"^\| `(\w+\.csv)` \| [^|]* \| ([^|]*) \|$", text, re.MULTILINE))
    files = {file.name: file.read_text(encoding="utf-8").splitlines()[0] for file in (tmp_path / "csv").iterdir()}
    documented = {name: ",".join(re.findall(r"`(\w+)`", columns)) for name, columns in printed.items()}
    assert documented == files
