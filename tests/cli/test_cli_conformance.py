"""`unstale conformance`: table, JSON, exit codes."""

import json
import re
from dataclasses import replace

import pytest
import torch

from unstale.cli import main
from unstale.conformance.kit import LAWS
from unstale.policies import Policy, PolicySettings, Step, registry
from unstale.policies.weights import uniform


class Wrong(Policy[PolicySettings]):
    """Has no source, and returns [0.5]."""

    source = ""

    def step(self, batch) -> Step:
        raise RuntimeError("[0.5]")


class Right(Policy[PolicySettings]):
    """The average."""

    source = "for tests"

    def step(self, batch) -> Step:
        return self.weighted(batch, uniform(len(batch)))


@pytest.fixture(autouse=True)
def _two_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "REGISTRY", replace(registry.REGISTRY, built_in={"right": Right, "wrong": Wrong}))
    monkeypatch.setenv("COLUMNS", "300")


def test_a_table_and_a_line_show_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["conformance", "right"]) == 0
    text = capsys.readouterr().out
    assert [sentence for sentence in LAWS if sentence not in text] == []
    assert text.endswith(f"1 policy, {len(LAWS) + 1} cases: {len(LAWS) + 1} passed, 0 failed\n")


def test_the_exit_code_is_1_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["conformance"]) == 1
    text = capsys.readouterr().out
    assert "RuntimeError: [0.5]" in text
    assert re.search(rf"2 policies, {2 * len(LAWS) + 2} cases: \d+ passed, [1-9]\d* failed\n$", text)


def test_the_rows_are_printed_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["conformance", "right", "wrong", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert {tuple(row) for row in rows} == {("policy", "case", "expected", "got", "verdict")}
    assert {row["verdict"] for row in rows if row["policy"] == "right"} == {"pass"}
    assert {row["verdict"] for row in rows} == {"pass", "fail", "error"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rigt"], "unstale: unknown policy 'rigt'; did you mean 'right'?\n"),
        (["--device", "gpu"], "unstale: device is 'gpu', expected"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["conformance", *arguments]) == 2
    assert capsys.readouterr().err.startswith(sentence)


def test_a_missing_device_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    found = torch.cuda.device_count()
    assert main.run(["conformance", "--device", f"cuda:{found}"]) == 2
    assert f"PyTorch finds {found} CUDA devices" in capsys.readouterr().err
