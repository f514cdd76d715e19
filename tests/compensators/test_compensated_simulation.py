"""Compensators in simulated runs: digits, few clients, rounds that wait for all of them, and a stale group."""

from pathlib import Path
from typing import Any

import pytest

from support.running import small
from support.virtual import Trace
from unstale.coordinator import actions
from unstale.errors import UserError
from unstale.learner.learner import Learner, RoundResult
from unstale.metrics.progress import Outcome
from unstale.simulator.assemble import simulation

LATE = 2  # rounds

SCENARIO = f"""
description: The first two clients are late.
groups:
  - name: late
    clients: [0, 1]
    stale_rounds: {LATE}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "late.yaml"
    file.write_text(SCENARIO, encoding="utf-8")
    return {"name": str(file)}


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[RoundResult]:
    """Of every round that any learner applies."""
    found: list[RoundResult] = []
    apply_round = Learner.apply_round

    def watched(self: Learner, *arguments: Any) -> RoundResult:
        found.append(apply_round(self, *arguments))
        return found[-1]

    monkeypatch.setattr(Learner, "apply_round", watched)
    return found


def run(compensator: str = "none", settings: dict[str, Any] | None = None, **changes: Any) -> Outcome:
    whole = small(
        **{
            "clients": 5,
            "rounds": 6,
            "evaluate_every": 6,
            "trigger": {"name": "sync"},
            "policy": {"name": "direct"},
            "training": {"learning_rate": 0.2, "epochs": 1, "batch_size": 2048},
            "partition": {"name": "dirichlet", "alpha": 0.3},
            "compensator": {"name": compensator, "settings": settings or {}},
            **changes,
        }
    )
    return simulation(whole, on_progress=lambda progress: None).run()


FEW = {"images_max": 4, "iterations": 3, "iterations_min": 1, "window": 4, "adapt": False}


@pytest.mark.parametrize(
    "training",
    [
        {"learning_rate": 0.2, "epochs": 1, "batch_size": 64},
        {"learning_rate": 0.2, "steps": 3, "batch_size": 16, "momentum": 0.5},
        {"name": "gradient", "learning_rate": 0.2, "batch_size": 16},
    ],
    ids=["epochs", "momentum", "gradient"],
)
@pytest.mark.parametrize("policy", ["direct", "dynsgd"])
def test_with_the_oracle_a_run_equals_one_without_stale_updates(scenario, policy, training):
    changes = {"policy": {"name": policy}, "training": training}
    unstale = run(**changes)
    assert run("oracle", scenario=scenario, **changes).model_digest == unstale.model_digest
    assert run(scenario=scenario, **changes).model_digest != unstale.model_digest


def test_the_oracle_asks_clients_that_are_computed_in_one_batch(scenario):
    batch = {"simulation": {"backend": "vmap"}}
    late, unstale = run("oracle", scenario=scenario, **batch), run(**batch)
    assert late.metrics["loss"] == pytest.approx(unstale.metrics["loss"], abs=1e-4)


@pytest.mark.parametrize("training", ["moon", "scaffold"])
def test_the_oracle_refuses_clients_that_keep_state(scenario, training):
    # The update of such a client depends on its state, which computing the update would change.
    policy = "scaffold" if training == "scaffold" else "direct"
    changes = {"training": {"name": training, "steps": 2}, "policy": {"name": policy}}
    with pytest.raises(UserError, match=f"training.name is '{training}'.* more than model and data"):
        run("oracle", scenario=scenario, **changes)


@pytest.mark.parametrize("name", ["first-order", "gradient-inversion", "auto"])
def test_a_run_without_stale_updates_equals_one_without_a_compensator(name):
    assert run(name).model_digest == run().model_digest


@pytest.mark.parametrize(
    ("name", "settings", "method"),
    [
        ("first-order", {}, "first-order"),
        ("gradient-inversion", {**FEW, "switch": "never"}, "gradient-inversion"),
        ("oracle", {}, "oracle"),
    ],
)
def test_stale_updates_are_compensated_and_no_others(scenario, results, name, settings, method):
    run(name, settings, scenario=scenario)
    assert len(results) == 6
    for version, result in enumerate(results):
        stale = {place for place, staleness in enumerate(result.staleness) if staleness}
        assert len(stale) == (2 if version >= LATE else 0)
        assert result.compensation is not None
        compensated = {
            place for place, compensated in enumerate(result.compensation.updates) if compensated.method == method
        }
        assert compensated == stale


def test_a_run_repeats_itself_to_the_bit(scenario):
    settings = {**FEW, "switch": "oracle"}
    assert (
        run("auto", settings, scenario=scenario).model_digest == run("auto", settings, scenario=scenario).model_digest
    )


def test_matched_errors_come_from_the_clients_later_updates(scenario, results):
    # A client is two rounds late, so its update in round v + 2 measures an estimate for version v.
    run("gradient-inversion", {**FEW, "switch": "matched"}, scenario=scenario)
    errors = [len(result.compensation.errors) for result in results]
    assert errors == [0, 0, 0, 0, 2 * 3, 2 * 3]
    errors = [error for result in results for error in result.compensation.errors]
    assert {error.staleness for error in errors} == {LATE}
    assert {error.method for error in errors} == {"none", "first-order", "gradient-inversion"}


def test_matched_errors_are_the_true_ones(scenario, results):
    # A simulation knows a client's update of version v at once, a server two rounds later.
    def errors(switch: str) -> dict[tuple[int, int, str], float]:
        results.clear()
        run("gradient-inversion", {**FEW, "switch": switch, "window": 100}, scenario=scenario)
        late = LATE if switch == "matched" else 0
        return {
            (result.version - late, error.client_id, error.method): error.l1
            for result in results
            for error in result.compensation.errors
        }

    matched, true = errors("matched"), errors("oracle")
    assert len(matched) == 2 * 2 * 3
    for key, l1 in matched.items():
        assert l1 == pytest.approx(true[key], rel=1e-4), key


def test_the_stale_clients_are_those_of_the_scenario(scenario):
    trace = Trace()
    whole = small(
        clients=5,
        rounds=6,
        trigger={"name": "sync"},
        scenario=scenario,
        policy={"name": "direct"},
        compensator={"name": "first-order"},
    )
    simulation(whole, on_progress=lambda progress: None, observe=trace).run()
    late = {
        contribution.client_id
        for action in trace.done(actions.ApplyRound)
        for contribution in action.contributions
        if contribution.staleness
    }
    assert late == {0, 1}
