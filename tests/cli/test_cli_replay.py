"""`unstale replay`, `unstale explain` and `unstale simulate --run`: text and JSON."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from unstale.cli import main

PNG = b"\x89PNG\r\n"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("UNSTALE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A recorded simulation of six rounds of two updates."""
    path = str(tmp_path / "run")
    assert simulate("--run", path) == 0
    capsys.readouterr()
    return path


def simulate(*arguments: str) -> int:
    small = ["--clients", "4", "--rounds", "6", "--k", "2", "--model", "logreg", "--device", "cpu"]
    return main.run(["simulate", *small, "--set", "evaluate_every=3", *arguments])


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main.run(list(arguments)) == code
    return capsys.readouterr().out


def facts(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run(list(arguments)) == 2
    return capsys.readouterr().err


def test_a_run_that_comes_out_as_it_was_is_summed_up_in_a_line(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "replay", run) == "6 rounds, 12 updates, all digests equal\n"
    (fact,) = facts(printed(capsys, "replay", run, "--json"))
    assert fact == {
        "event": "replayed", "first": 0, "last": 6, "rounds": 6, "updates": 12, "parted": None,
    }  # fmt: skip


def test_a_different_version_gives_exit_code_1(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = Path(run) / "config.yaml"
    config.write_text(config.read_text().replace("server_multiplier: 1.0", "server_multiplier: 0.5"))
    with closing(sqlite3.connect(Path(run) / "run.db", isolation_level=None)) as database:
        database.execute("DELETE FROM meta WHERE key = 'config'")  # by which the change would be found
    said = printed(capsys, "replay", run, code=1)
    assert said.startswith("version 1 differs: recorded digest ")
    assert said.endswith("\n0 rounds, 0 updates, all digests before it equal\n")
    (fact,) = facts(printed(capsys, "replay", run, "--json", code=1))
    parted = fact["parted"]
    assert isinstance(parted, dict)
    assert parted["version"] == 1
    assert parted["recorded"] != parted["computed"]


def test_another_policy_is_shown_beside_the_recorded_one(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "replay", run, "--policy", "fedavg").splitlines()
    assert said[0].startswith(
        "The clients trained on the models of dynsgd: fedavg aggregates the updates that they sent then"
    )
    assert said[2].split() == ["version", "dynsgd", "fedavg", "dynsgd", "fedavg"]
    assert [line.split()[0] for line in said[3:6]] == ["0", "3", "6"]
    assert len(set(map(len, said[2:6]))) == 1  # the columns are in line
    assert said[6] == "6 rounds, 12 updates, all digests equal"
    printed_facts = facts(printed(capsys, "replay", run, "--policy", "fedavg", "--json"))
    assert [fact["event"] for fact in printed_facts] == ["compared", "compared", "compared", "replayed"]
    assert printed_facts[0]["accuracy"] == printed_facts[0]["other_accuracy"]


def test_the_same_policy_with_other_settings_has_a_name_of_its_own(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = printed(capsys, "replay", run, "--set", "policy.settings.normalise=false")
    assert "dynsgd, as set" in said.splitlines()[2]


def test_a_policy_with_base_models_uses_the_recorded_ones(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "replay", run, "--policy", "fedasync")
    assert "fedasync needs the base models of updates: they are the recorded ones." in said


def test_both_policies_are_drawn(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "both.png"
    said = printed(capsys, "replay", run, "--policy", "fedavg", "--plot", str(file))
    assert f"{file}: written\n" in said
    assert file.read_bytes().startswith(PNG)


def test_a_picture_that_cannot_be_is_refused_before_the_run_is_computed(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = ["--plot", str(tmp_path / "nowhere/both.png")]
    assert "expected --policy, or --set policy.KEY=VALUE" in refusal(capsys, "replay", run, *plot)
    assert "expected a file in a folder that exists" in refusal(capsys, "replay", run, "--policy", "fedavg", *plot)


@pytest.mark.parametrize("command", ["replay", "explain"])
def test_a_directory_without_a_run_is_refused(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, command, str(tmp_path))
    assert "is not the directory of a run, expected one with config.yaml and run.db" in said


def test_a_round_is_explained(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "explain", run, "3").splitlines()
    assert said[0] == f"version 3 of 6 in {run}"
    assert said[1].startswith("k-async closes with 2 updates: the 2nd came at ")
    assert len([line for line in said if "%" in line]) == 2
    assert "rejected since the previous round closed: nothing" in said
    (fact,) = facts(printed(capsys, "explain", run, "--json"))
    assert (fact["event"], fact["version"]) == ("explained", 6)
    members = fact["members"]
    assert isinstance(members, list)
    assert sum(member["share"] for member in members) == pytest.approx(1.0)
    assert isinstance(fact["accuracy"], float)


def test_an_unknown_round_is_one_error_line(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "ROUND is 0, the initial model" in refusal(capsys, "explain", run, "0")
    assert "ROUND is 7, expected 1 to 6" in refusal(capsys, "explain", run, "7")


def test_a_simulation_is_recorded_in_a_new_directory_only(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("--run", run) == 2
    assert "is a file or not empty, expected a new directory" in capsys.readouterr().err
    assert simulate("--run", str(tmp_path / "other"), "--set", "run.durability=off") == 2
    assert "run.durability is off, so nothing would be recorded" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_simulation_writes_no_files_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert simulate("--set", f"run.directory={tmp_path / 'run'}") == 0
    assert list(tmp_path.iterdir()) == []
