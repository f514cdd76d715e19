"""Commands that take the name of a part take that of code, too."""

from pathlib import Path

import pytest

from unstale.cli import main

MODULE = "support.plugged"
FEW = ["--clients", "4", "--set", "training.steps=1"]
COMMANDS = {
    "policies": ["policies", f"{MODULE}:MyPolicy"],
    "compensators": ["compensators", f"{MODULE}:MyCompensator"],
    "conformance": ["conformance", f"{MODULE}:MyPolicy"],
    "scenario show": ["scenario", "show", f"{MODULE}:SLOW", *FEW],
    "scenario chaos-mesh": ["scenario", "chaos-mesh", f"{MODULE}:SLOW", "--clients", "4"],
    "data show": ["data", "show", f"{MODULE}:plugged_digits"],
    "partition show": [
        *("partition", "show", "--data", f"{MODULE}:plugged_digits", "--partition", f"{MODULE}:ScaledPartition"),
        *("--set", "partition.settings.share=2", "--clients", "4"),
    ],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_the_name_of_code(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(COMMANDS[command]) == 0, capsys.readouterr().err
    assert MODULE in capsys.readouterr().out or command == "data show"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_module_that_is_not_there_is_one_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [argument.replace(MODULE, "nowhere") for argument in COMMANDS[command]]
    assert main.run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nowhere:" in line
    assert "No module named 'nowhere'" in line


def test_a_run_with_own_parts_only_is_simulated_checked_replayed_and_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {
        "policy": "MyPolicy", "compensator": "MyCompensator", "trigger": "WithSettings", "selector": "EvenSelector",
        "partition": "ScaledPartition", "training": "ClippedTraining", "objective": "MyObjective", "model": "linear",
        "data": "plugged_digits", "scenario": "SLOW",
    }  # fmt: skip
    parts = [word for part, name in own.items() for word in (f"--{part}", f"{MODULE}:{name}")]
    settings = [
        "trigger.settings.level=0.5",
        "trigger.k=2",
        "training.settings.clip=1.5",
        "selector.settings.even=true",
    ]
    options = [*parts, *(word for setting in settings for word in ("--set", setting)), "--clients", "4"]
    run = str(tmp_path / "run")
    assert main.run(["config", "show", *options]) == 0
    (tmp_path / "run.yaml").write_text(capsys.readouterr().out)
    assert main.run(["config", "check", str(tmp_path / "run.yaml")]) == 0
    assert main.run(["simulate", "--config", str(tmp_path / "run.yaml"), "--rounds", "4", "--run", run]) == 0
    assert main.run(["replay", run]) == 0
    assert main.run(["explain", run, "1"]) == 0
    assert main.run(["report", run, "--out", str(tmp_path / "report.html")]) == 0
