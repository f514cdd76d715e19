"""The conformance kit: every registered policy passes it, and what the report says."""

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from pydantic import Field

from unstale.conformance import Row, examine
from unstale.conformance.kit import LAWS
from unstale.conformance.policy_under_test import PolicyUnderTest
from unstale.errors import UserError
from unstale.policies import Policy, PolicySettings, Step, names, registry
from unstale.policies.stages import wrapped
from unstale.policies.weights import on_rows, uniform
from unstale.settings.learning import OptimiserSettings

ABOUT_A_POLICY = {
    "it runs in both profiles and in synchronous rounds",
    "it runs with every option",
    "the order of arrival changes rounding only",
    "equal fresh updates are a step along them",
    "the same round again and again gives the same step",
    "updates twice as long give a step twice as long",
    "a large model steps as a small one",
    "the policy and its settings are described",
    "named parts and settings exist",
}
"""Laws that do not hold for stages around a policy."""

Register = Callable[[type[Policy[Any]]], None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Make a class known as the policy `own`."""
    return lambda policy_class: monkeypatch.setitem(registry._BUILT_IN, "own", policy_class)


def failed(rows: list[Row]) -> dict[str, str]:
    return {row.case: row.got for row in rows if row.verdict != "pass"}


class Average(Policy[PolicySettings]):
    """The average."""

    source = "for tests"

    def step(self, batch) -> Step:
        return self.weighted(batch, uniform(len(batch)))


@pytest.mark.parametrize("name", names())
def test_every_policy_passes(name: str) -> None:
    rows = list(examine((name,)))
    assert failed(rows) == {}
    assert len(rows) > len(LAWS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", names())
def test_every_policy_passes_on_a_gpu(name: str) -> None:
    assert failed(list(examine((name,), "cuda"))) == {}


def test_an_unregistered_policy_passes_by_the_laws_alone(register: Register) -> None:
    register(Average)
    rows = list(examine(("own",)))
    assert failed(rows) == {}
    assert [row.case for row in rows] == ["it can be made", *LAWS]


def test_all_policies_are_examined_when_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    two = replace(registry.REGISTRY, built_in={"own": Average, "other": Average})
    monkeypatch.setattr(registry, "REGISTRY", two)
    assert {row.policy for row in examine()} == {"own", "other"}


def test_an_unknown_policy_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="unknown policy 'fedavgg'; did you mean 'fedavg'"):
        list(examine(("fedavgg",)))


def test_a_policy_may_declare_that_order_matters(register: Register) -> None:
    class Ordered(Average):
        """The first update only."""

        order_matters = True

        def step(self, batch) -> Step:
            return self.weighted(batch, on_rows(range(min(len(batch), 1)), 1.0, len(batch)))

    register(Ordered)
    assert failed(list(examine(("own",)))) == {}


def test_a_policy_may_declare_longer_steps_that_do_not_scale(register: Register) -> None:
    class Bold(Average):
        """Twice the average, of length 3 at most."""

        longest_step = 2.0
        is_homogeneous = False

        def step(self, batch) -> Step:
            step = self.weighted(batch, 2 * uniform(len(batch)))
            length = float(step.direction_d.norm())
            return replace(step, rate_factor=min(1.0, 3 / length) if length > 0 else 1.0)

    register(Bold)
    assert failed(list(examine(("own",)))) == {}
    Bold.longest_step, Bold.is_homogeneous = 1.0, True
    assert set(failed(list(examine(("own",))))) == {
        "equal fresh updates are a step along them",
        "updates twice as long give a step twice as long",
        "a large model steps as a small one",
    }


def test_a_policy_may_supply_its_own_golden_vectors(register: Register, tmp_path: Path) -> None:
    class Doubtful(Average):
        golden = tmp_path / "average.json"

    written = files("unstale.conformance") / "vectors" / "fedavg.json"
    vectors = json.loads(written.read_text(encoding="utf-8"))
    vectors["cases"] = [case for case in vectors["cases"] if not case["settings"]]
    Doubtful.golden.write_text(json.dumps(vectors))
    register(Doubtful)
    rows = {row.case: row.verdict for row in examine(("own",))}
    assert (rows["sequence, k-async"], rows["sequence, availability"]) == ("pass", "pass")
    vectors["cases"][0]["steps"][3]["weights"][0] += 1e-3
    Doubtful.golden = tmp_path / "wrong.json"
    Doubtful.golden.write_text(json.dumps(vectors))
    assert failed(list(examine(("own",)))) == {"sequence, k-async": "weights 1e-03 off in round 3"}


@pytest.mark.parametrize("case", [case for case in LAWS if case not in ABOUT_A_POLICY])
@pytest.mark.parametrize(
    ("clip_norm", "norm", "optimiser"),
    [
        (1.5, "none", "none"),
        (None, "mean-of-updates", "none"),
        (None, "none", "momentum"),
        (None, "none", "yogi"),
        (1.5, "mean-of-updates", "adam"),
    ],
)
def test_stages_around_a_policy_satisfy_the_laws(case: str, clip_norm: float | None, norm: Any, optimiser: str) -> None:
    class Wrapped(PolicyUnderTest):
        def make(self) -> Policy[Any]:
            chosen = OptimiserSettings(name=optimiser)
            return wrapped(super().make(), clip_norm=clip_norm, norm=norm, optimiser=chosen)

    found = LAWS[case](Wrapped(name="fedavg", device=torch.device("cpu")))
    assert found.passed, found.got


def test_a_case_that_raises_is_an_error_and_other_cases_continue(register: Register) -> None:
    class FailsOnEmptyRounds(Average):
        def step(self, batch) -> Step:
            return self.weighted(batch, torch.full((len(batch),), 1 / len(batch), dtype=torch.float64))

    register(FailsOnEmptyRounds)
    rows = {row.case: row for row in examine(("own",))}
    row = rows["empty rounds give finite steps"]
    assert (row.verdict, row.got) == ("error", "ZeroDivisionError: division by zero")
    assert rows["the policy and its settings are described"].verdict == "pass"


def test_a_policy_that_cannot_be_built_is_an_error_and_not_a_crash(register: Register) -> None:
    class Broken(Average):
        def __init__(self, settings, context) -> None:
            raise RuntimeError("no")

    register(Broken)
    (row,) = examine(("own",))
    assert (row.case, row.verdict, row.got) == ("it can be made", "error", "RuntimeError: no")


def test_required_settings_come_from_the_class(register: Register) -> None:
    class NeedsPower(PolicySettings):
        power: float = Field(description="p", json_schema_extra={"source": "s"})

    class Needs(Average):
        Settings = NeedsPower

    register(Needs)
    (row,) = examine(("own",))
    assert (row.verdict, row.got) == ("fail", "'power' is required: give the class example_settings")
    Needs.example_settings = MappingProxyType({"power": 2.0})
    assert failed(list(examine(("own",)))) == {}
