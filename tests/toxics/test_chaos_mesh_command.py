"""`unstale scenario chaos-mesh`: every ready scenario becomes YAML, and omitted parts are reported twice."""

from pathlib import Path

import pytest
import yaml

from unstale.cli import main
from unstale.config.scenario import ready_names


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, list[str]]:
    assert main.run(["scenario", "chaos-mesh", *arguments]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err.splitlines()


@pytest.mark.parametrize("name", ready_names())
def test_a_ready_scenario_is_translated_or_reported(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, errors = output(capsys, name)
    objects = [one for one in yaml.safe_load_all(out) if one]
    assert objects or errors
    assert {one["apiVersion"] for one in objects} <= {"chaos-mesh.org/v1alpha1"}
    names = [one["metadata"]["name"] for one in objects]
    assert len(set(names)) == len(names)
    for error in errors:
        assert f"# Not in Chaos Mesh: {error.removeprefix('not in Chaos Mesh: ')}" in out.splitlines()


def test_a_custom_scenario_targets_custom_pods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("""
groups:
  - name: cellar
    clients: ["6-8"]
    toxics:
      - {type: latency, direction: up, delay: 10}
""")
    arguments = ["--clients", "9", "--clients-each", "3", "--namespace", "lab", "--scenario.time-scale", "0.1"]
    out, errors = output(capsys, str(file), *arguments)
    (made,) = yaml.safe_load_all(out)
    assert errors == []
    assert made["metadata"]["namespace"] == "lab"
    assert made["spec"]["delay"]["latency"] == "1s"
    assert made["spec"]["selector"]["expressionSelectors"][0]["values"] == ["2"]
