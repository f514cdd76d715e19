"""`unstale scenario`: text, JSON and plot."""

import json
import os
from pathlib import Path

import pytest

from unstale.cli import main
from unstale.cli.scenario_text import duration
from unstale.config.scenario import ready_names
from unstale.toxics.preview import BINS

TWO_GROUPS = """\
description: Two groups.
groups:
  - name: far
    clients: ["0-2"]
    device: {step_s: 0.2}
    toxics:
      - {type: bandwidth, bytes_per_s: 1_000}
      - {type: latency, direction: up, delay: 0.5}
      - {type: blackout, start_s: 50, end_s: 100}
  - name: late
    clients: [3]
    stale_rounds: 4
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("UNSTALE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def two_groups(tmp_path: Path) -> str:
    file = tmp_path / "two.yaml"
    file.write_text(TWO_GROUPS)
    return str(file)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run(["scenario", *arguments]) == 0
    return capsys.readouterr().out


def test_the_list_describes_each_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "list").splitlines()
    assert tuple(line.split()[0] for line in lines[: len(ready_names())]) == ready_names()
    assert "slow-tenth       A tenth of the clients take twice as long" in "\n".join(lines)
    rows = json.loads(printed(capsys, "list", "--json"))
    assert tuple(row["name"] for row in rows) == ready_names()
    assert all(row["description"].endswith(".") for row in rows)


def test_each_leg_of_each_group_is_a_row(two_groups: str, capsys: pytest.CaptureFixture[str]) -> None:
    # 800 bytes and a header of 200 at 1000 bytes/s: 1 s. 5 steps of 0.2 s: 1 s. Then 0.5 s more up: 3.5 s in all.
    # The 14th update is there at 49 s. The 15th task would come at 50 s: it is lost, and 20 more, each 2.5 s: 21 of 35.
    options = ["--clients", "5", "--payload-bytes", "800", "--seconds", "100", "--steps", "5"]
    text = printed(capsys, "show", two_groups, *options)
    lines = text.splitlines()
    assert lines[0] == f"{two_groups}: 5 clients, 800 bytes per message, seed 0"
    assert lines[1].split()[:7] == ["group", "clients", "10%", "median", "90%", "lost", "999"]
    assert lines[2].split()[:12] == ["far", "3", "task", "down", "1", "s", "1", "s", "1", "s", "60.0%", "█"]
    assert lines[3].split()[:7] == ["computing", "1", "s", "1", "s", "1", "s"]
    assert lines[4].split()[:9] == ["update", "up", "1.5", "s", "1.5", "s", "1.5", "s", "0.0%"]
    assert lines[5].split() == ["late", "1", "task", "down", "0", "0", "0", "0.0%", "at", "once"]
    assert lines[8].split()[:6] == ["in", "no", "group", "1", "task", "down"]
    assert "late: updates are 4 rounds late" in text
    half = BINS // 2
    assert f"far         |{'█' * half}{' ' * half}| 50%" in lines
    assert f"late        |{'█' * BINS}| 100%" in lines


def test_clients_that_never_connect_have_no_delays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "nobody.yaml"
    file.write_text("groups: [{name: g, toxics: [{type: dropout, p: 0}]}]")
    text = printed(capsys, "show", str(file))
    assert "g: 100% of the tasks are declined" in text
    assert f"g |{' ' * BINS}| 0%" in text
    assert "connected clients: 60 rounds" in text
    (group,) = json.loads(printed(capsys, "show", str(file), "--json"))["groups"]
    assert group["declined"] == 1
    assert group["legs"]["update up"] == {"lost": None, "p10_s": None, "median_s": None, "p90_s": None}


def test_the_json_holds_the_same_numbers(two_groups: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--clients", "5", "--payload-bytes", "800", "--seconds", "100", "--json"]
    facts = json.loads(printed(capsys, "show", two_groups, *options))
    assert (facts["scenario"], facts["seconds"]) == (two_groups, 100)
    far, late, others = facts["groups"]
    assert (far["name"], far["clients"], far["stale_rounds"]) == ("far", 3, None)
    assert far["legs"]["task down"] == pytest.approx({"lost": 0.6, "p10_s": 1.0, "median_s": 1.0, "p90_s": 1.0})
    assert far["there"] == [1.0] * (BINS // 2) + [0.0] * (BINS // 2)
    assert (late["stale_rounds"], others["name"], others["clients"]) == (4, "in no group", 1)


def test_the_time_scale_of_the_run_is_that_of_the_picture(two_groups: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--clients", "5", "--payload-bytes", "800", "--seconds", "10", "--json"]
    facts = json.loads(printed(capsys, "show", two_groups, *options, "--scenario.time-scale", "0.1"))
    assert facts["groups"][0]["legs"]["update up"]["median_s"] == pytest.approx(0.15)


@pytest.mark.parametrize("name", ["satellite", "availability-01", "night-shift", "staleness-40"])
def test_a_scenario_is_drawn(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "seen.png"
    text = printed(capsys, "show", name, "--plot", str(file))
    assert f"{file}: written" in text
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", "lta"], "unstale: unknown scenario 'lta'; did you mean 'lte'?; a file of your own ends"),
        (["show", "lte", "--plot", "/nowhere/a.png"], "cannot write /nowhere/a.png: no such file or directory"),
        (["show", "lte", "--seconds", "nan"], "--seconds is nan, expected a number from 0.001 to 10,000,000"),
        (["shaw", "lte"], "unknown command 'shaw'; did you mean 'show'?"),
        (["show", "staleness-40", "--data", "nothing"], "unknown data set 'nothing'"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["scenario", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0"), (4.2e-4, "420 us"), (0.0125, "12.5 ms"), (1, "1 s"), (75, "75 s"), (3599.6, "3,600 s")],
)
def test_durations_have_a_suitable_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
