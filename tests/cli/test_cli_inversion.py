"""`unstale inversion audit`: text, JSON, plots, and the warning about reconstructed data."""

import json
import os
import sys
from pathlib import Path

import pytest

from unstale.cli import main
from unstale.cli.inversion import announce
from unstale.config import Settings

PNG = b"\x89PNG\r\n"
SMALL = [
    "inversion", "audit", "--clients", "6", "--rounds", "6", "--k", "2", "--model", "logreg", "--device", "cpu",
    "--partition", "dirichlet-client", "--alpha", "0.3", "--partition.budget", "30",
    "--set", "compensator.settings.iterations=3", "--set", "compensator.settings.iterations_min=1",
    "--set", "compensator.settings.images_max=4",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("UNSTALE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setitem(sys.modules, "lpips", None)  # or its weights would be looked for


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run([*SMALL, *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run([*SMALL, *arguments]) == 2
    return capsys.readouterr().err


def test_people_read_how_close_the_examples_come(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys)
    updates = [line for line in text.splitlines() if line.startswith("round 6: client ")]
    assert updates
    assert all("rounds stale: 4 examples, disparity " in line for line in updates)
    assert all(line.endswith(" in 3 iterations") for line in updates)
    assert f"{len(updates)} update" in text
    for measure in ("PSNR, dB", "SSIM"):
        rows = [line.split("  ") for line in text.splitlines() if line.strip().startswith(measure)]
        assert len([row for row in rows if row]) >= 3
    assert "closer to own than to" in text
    assert "shares of classes read from updates: 0." in text
    assert "LPIPS is left out: package lpips is not installed" in text


def test_json_has_every_example_and_the_findings(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in printed(capsys, "--json", "--at", "5", "--at", "6").splitlines()]
    inverted = [line for line in lines if line["event"] == "reconstructed"]
    audited = lines[-1]
    assert (audited["event"], audited["updates"]) == ("audited", len(inverted))
    assert {line["round"] for line in inverted} <= {5, 6}
    values = [value for line in inverted for value in line["best"]["psnr"]["own"]]
    assert len(values) == audited["examples"] == 4 * len(inverted)
    (psnr,) = [one for one in audited["measures"] if one["measure"] == "psnr"]
    assert psnr["pools"]["own"]["mean"] == pytest.approx(sum(values) / len(values))
    assert psnr["closer"]["others"]["closer_share"] <= 1
    assert sum(one["examples"] for one in audited["classes"]) == len(values)
    assert audited["notes"][0].startswith("LPIPS is left out")


def test_no_more_updates_are_inverted_than_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--json", "--at", "5", "--at", "6", "--updates", "1")
    (audited,) = [json.loads(line) for line in text.splitlines() if '"audited"' in line]
    assert audited["updates"] == 1
    assert audited["measures"][0]["closer"]["others"]["low"] is None  # one client contains no information about others


def test_pictures_are_drawn_into_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "plots"
    text = printed(capsys, "--plots", str(folder))
    for name in ("closeness.png", "disparity.png", "examples.png"):
        assert f"{folder / name}: written\n" in text
        assert (folder / name).read_bytes().startswith(PNG)


def test_mistakes_are_reported_before_the_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert refused(capsys, "--plots", str(tmp_path / "file")) == (
        f"unstale: --plots is {tmp_path / 'file'}, which cannot be created: file exists; choose another folder\n"
    )
    assert "--at is 7, expected 1 to 6, which is rounds" in refused(capsys, "--at", "7")
    assert "'first-order', which inverts nothing" in refused(capsys, "--compensator", "first-order")


def test_a_compensator_that_reconstructs_data_prints_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("none", "first-order", "oracle"):
        announce(Settings(compensator={"name": name}))
    assert capsys.readouterr().err == ""
    for name in ("gradient-inversion", "auto"):
        announce(Settings(compensator={"name": name}))
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"unstale: compensator {name} reconstructs representative data of clients")
        assert "secure aggregation" in said.err
        assert "`unstale inversion audit`" in said.err
        assert said.err.count("\n") == 1
