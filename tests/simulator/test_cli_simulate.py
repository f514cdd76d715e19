"""`unstale simulate`: its output on a scenario."""

import json

import pytest

from unstale.cli import main

SMALL = ["simulate", "--clients", "4", "--rounds", "6", "--k", "2", "--model", "logreg", "--device", "cpu"]


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run([*SMALL, *arguments]) == 0
    return capsys.readouterr().out


def test_the_effects_of_a_scenario_are_printed_if_any(capsys: pytest.CaptureFixture[str]) -> None:
    printed = output(capsys, "--scenario", "flaky")
    assert " messages through the scenario, " in printed
    assert " lost" in printed
    assert "messages through" not in output(capsys)


def test_json_output_has_the_scenario_before_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in output(capsys, "--scenario", "availability-05", "--json").splitlines()]
    assert [line["event"] for line in lines[-2:]] == ["traffic", "finished"]
    assert lines[-2]["declined"] > 0
    assert lines[-2]["lost"] == 0


def test_an_unknown_scenario_is_one_error_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*SMALL, "--scenario", "flakey"]) == 2
    assert "unknown scenario 'flakey'; did you mean 'flaky'?" in capsys.readouterr().err
