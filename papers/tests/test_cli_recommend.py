"""`unstale recommend`: its output, and its errors."""

import json
from importlib.metadata import EntryPoint, EntryPoints
from itertools import product

import pytest
import yaml

from unstale import plugins
from unstale.cli import commands, main
from unstale_papers.guide.evidence import load, standings

AXES = load().axes


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("recommend", "unstale_papers.cli.recommend:recommend", commands.ENTRY_POINT_GROUP)]
    monkeypatch.setattr(plugins, "entry_points", lambda **group: EntryPoints(points).select(**group))


@pytest.mark.parametrize("labels", list(product(*AXES.values())))
def test_every_measured_condition_has_a_policy_with_settings(
    labels: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    condition = dict(zip(AXES, labels, strict=True))
    options = [word for axis, label in condition.items() for word in (f"--{axis}", label)]
    assert main.run(["recommend", *options]) == 0
    text = capsys.readouterr().out
    first, second, *_ = standings(load(), condition, list(load().tasks))
    assert text.startswith(
        f"For {', '.join(f'{axis} {label}' for axis, label in condition.items())}: {first.method}.\n"
    )
    assert f"\nRunner-up: {second.method}, " in text
    settings = yaml.safe_load(text.partition("# of unstale.yaml\n")[2])
    assert settings["policy"]["name"] == first.method.lower()
    assert settings["trigger"] == {"name": "k-async"}


def test_the_json_has_every_policy_best_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["recommend", "--staleness", "high", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    expected = standings(load(), {"staleness": "high"}, list(load().tasks))
    assert [one["policy"] for one in facts["policies"]] == [one.method for one in expected]
    assert facts["condition"] == {"staleness": "high"}
    assert facts["tasks"] == list(load().tasks)


def test_an_unmeasured_condition_is_one_error_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["recommend", "--staleness", "20"]) == 2
    assert capsys.readouterr() == (
        "",
        "unstale: --staleness is '20', of which there is no evidence, expected low or high\n",
    )
