"""`unstale compensators`: text and JSON."""

import json

import pytest

from unstale.cli import main
from unstale.compensators import names


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run(["compensators", *arguments]) == 0
    return capsys.readouterr().out


def test_all_are_listed_and_which_reconstruct_data(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys).splitlines()
    rows = {name: next(line for line in lines if f" {name} " in line) for name in names()}
    assert [name for name, row in rows.items() if " yes " in row] == ["auto", "gradient-inversion"]
    assert [name for name, row in rows.items() if " simulation " in row] == ["oracle"]


def test_one_is_shown_with_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "first-order", "oracle", "none")
    row = next(line.split() for line in text.splitlines() if "lambda_u" in line)
    assert row[:5] == ["lambda_u", "4.0", "a", "number", ">="]
    assert text.count("settings none") == 1
    assert "in `unstale simulate` only" in text
    assert "reconstructs" not in text
    assert "reconstructs representative data of clients" in printed(capsys, "auto")


def test_they_are_listed_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(printed(capsys, "--json"))
    assert tuple(one["name"] for one in listed) == names()
    for one in listed:
        assert one["summary"] and one["source"] and one["memory"]
        for setting in one["settings"]:
            assert setting["type"] and setting["source"] and setting["description"], (one["name"], setting)


def test_an_unknown_name_is_one_error_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["compensators", "first-ordr"]) == 2
    assert "did you mean 'first-order'?" in capsys.readouterr().err
