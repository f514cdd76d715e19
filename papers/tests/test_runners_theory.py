"""Runs of the simulator on problems with a known optimum, against laws and independent iterations in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unstale.config import Settings
from unstale.coordinator import actions, events
from unstale.errors import UserError
from unstale_papers.record import Record
from unstale_papers.runners import analytic, fixed_point, linear_rate, mean_staleness, scaling
from unstale_papers.runners.analytic import Trajectory
from unstale_papers.theory.problems import draw

QUADRATIC: dict[str, Any] = {"objective": "quadratic", "dimension": 3, "heterogeneity": 1.0, "curvature": [0.5, 2.0]}
ABSENT = """\
groups:
  - name: everyone
    toxics:
      - {type: dropout, p_by_client: [0.3, 0.6, 0.9, 1.0]}
"""
CONSTANT = """\
groups:
  - name: everyone
    device:
      task: {distribution: uniform, low_s: 1, high_s: 1.001}
"""


def ignore(_: float) -> None:
    """Progress."""


def settings(policy: str, chosen: dict[str, Any] | None = None, **changes: Any) -> Settings:
    """A synchronous run of four clients that send gradients."""
    rounds = changes.get("rounds", 60)
    merged = {
        "clients": 4,
        "rounds": 60,
        "evaluate_every": rounds,
        "device": "cpu",
        "trigger": {"name": "sync", "k": None},
        "training": {"name": "gradient", "learning_rate": 0.1},
        "simulation": {"backend": "loop"},
        "run": {"durability": "off"},
        **changes,
    }
    return Settings(policy={"name": policy, "settings": chosen or {}}, **merged)


@pytest.fixture
def absent(tmp_path: Path) -> dict[str, str]:
    """A scenario in which clients are absent."""
    file = tmp_path / "absent.yaml"
    file.write_text(ABSENT)
    return {"name": str(file)}


def run(chosen: Settings, options: dict[str, Any]) -> Trajectory:
    return analytic.run(chosen, options, ignore)


def test_fedavg_of_all_clients_is_gradient_descent() -> None:
    trajectory = run(settings("fedavg"), QUADRATIC)
    problem = draw(QUADRATIC, 4, seed=0)
    x_d = np.zeros(3)
    for model_d in trajectory.models:
        x_d = x_d - 0.1 * problem.mean_gradient(x_d)
        assert model_d.tolist() == pytest.approx(x_d.tolist(), abs=1e-5)
    assert len(trajectory.models) == 60


def test_a_delta_of_local_steps_is_that_of_gradient_descent_on_one_client() -> None:
    """With one client the next model is the client's."""
    local = {"name": "sgd", "steps": 3, "learning_rate": 0.1}
    trajectory = run(settings("fedavg", clients=1, rounds=2, training=local), QUADRATIC)
    problem = draw(QUADRATIC, 1, seed=0)
    x_d = np.zeros(3)
    for _ in range(6):
        x_d = x_d - 0.1 * problem.gradient(0, x_d)
    assert trajectory.models[-1].tolist() == pytest.approx(x_d.tolist(), abs=1e-5)


def test_the_squared_gradient_of_the_first_round_is_that_at_the_first_model() -> None:
    trajectory = run(settings("fedavg", rounds=2), QUADRATIC)
    gradient_d = draw(QUADRATIC, 4, seed=0).mean_gradient(np.zeros(3))
    assert trajectory.squared_gradients_R[0] == pytest.approx(float(gradient_d @ gradient_d))
    assert trajectory.squared_distances_R[1] < trajectory.squared_distances_R[0]


def test_noise_has_the_standard_deviation_of_the_options() -> None:
    """The mean of four clients has half of it. Of 100 numbers, so that a standard error is 7 %."""
    options = {**QUADRATIC, "dimension": 100}
    exact, noisy = (run(settings("fedavg", rounds=1), {**options, "noise": noise}).models[0] for noise in (0.0, 2.0))
    assert float(np.std((noisy - exact) / 0.1)) == pytest.approx(2.0 / 4**0.5, rel=0.25)


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [("mifa", {}), ("fedvarp", {}), ("fedar", {"rho": 0.0, "cutoff": "none"})],
    ids=["MIFA", "FedVARP", "FedAR with rho 0"],
)
def test_policies_that_count_all_clients_alike_reach_the_optimum(
    policy: str, chosen: dict[str, Any], absent: dict[str, str]
) -> None:
    record = fixed_point.measure(settings(policy, chosen, rounds=400, scenario=absent), QUADRATIC, on_progress=ignore)
    assert record.found["squared distance"] < 1e-9
    assert record.found["predicted squared distance"] == pytest.approx(0, abs=1e-20)
    assert record.found["unexplained share"] is None


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [("fedavg", {"weighting": "uniform"}), ("fedar", {"rho": 1.0, "cutoff": "none"})],
    ids=["FedAvg", "FedAR with rho 1"],
)
def test_policies_with_unequal_mean_weights_end_where_these_weights_predict(
    policy: str, chosen: dict[str, Any], absent: dict[str, str]
) -> None:
    decaying = {"name": "gradient", "learning_rate": 0.2, "schedule": {"name": "inverse", "period": 20}}
    record = fixed_point.measure(
        settings(policy, chosen, rounds=600, scenario=absent, training=decaying), QUADRATIC, on_progress=ignore
    )
    assert record.found["predicted squared distance"] > 1e-3
    assert record.found["unexplained share"] < 0.1


def test_mean_weights_of_clients_that_are_always_available_are_equal() -> None:
    for policy, chosen in (("fedavg", {}), ("fedar", {"rho": 0.5}), ("mifa", {})):
        weights_N = fixed_point.mean_weights(settings(policy, chosen))
        assert (weights_N / weights_N[0]).tolist() == pytest.approx([1, 1, 1, 1])


def test_a_policy_without_a_closed_form_is_refused() -> None:
    with pytest.raises(UserError, match="unknown policy with a known fixed point 'wkafl'"):
        fixed_point.mean_weights(settings("wkafl"))


def test_the_order_of_a_power_law_is_its_exponent() -> None:
    """Distances below 1e-9 do not count."""
    rounds_R = np.arange(1.0, 201.0)
    assert fixed_point.order_in_rounds(3 * rounds_R**-2) == pytest.approx(-2)
    assert fixed_point.order_in_rounds(np.where(rounds_R > 100, 1e-12, rounds_R**-2)) == pytest.approx(-2)
    assert fixed_point.order_in_rounds(np.full(50, 1e-12)) is None


def staleness(tmp_path: Path, scenario: str | None) -> Record:
    """8 clients, 2 updates per round: N/K is 4."""
    named = None
    if scenario is not None:
        named = tmp_path / "scenario.yaml"
        named.write_text(scenario)
    chosen = settings(
        "fedhist",
        clients=8,
        rounds=400,
        trigger={"name": "k-async", "k": 2},
        scenario={"name": None if named is None else str(named)},
    )
    return mean_staleness.measure(chosen, QUADRATIC, on_progress=ignore)


def test_the_mean_staleness_of_exponential_times_is_n_over_k(tmp_path: Path) -> None:
    """s + 1 is geometric with q = K/N = 1/4, of standard deviation sqrt(1 - q)/q = 3.5, over 720 updates."""
    assert staleness(tmp_path, None).found["mean staleness"] == pytest.approx(4, abs=0.5)


def test_the_staleness_of_constant_times_is_n_over_k_and_grows_by_one_a_round_at_first(tmp_path: Path) -> None:
    """In the first four rounds s + 1 is 1, 2, 3, 4: 2.5 on average."""
    found = staleness(tmp_path, CONSTANT).found
    assert found["mean staleness"] == pytest.approx(4, abs=0.05)
    assert found["mean staleness of the first cycle"] == pytest.approx(2.5)
    assert found["first cycle over N/K"] == pytest.approx(2.5 / 4)


def test_mean_staleness_counts_every_update_once() -> None:
    assert mean_staleness.mean_of([(0,), (1, 2, 3)]) == 2.5


def scaled(over: str, values: list[float], **changes: Any) -> Record:
    options = {**QUADRATIC, "heterogeneity": 0.0, "noise": 1.0, "step": 0.5, "over": over, "values": values}
    chosen = settings("fedavg", clients=8, trigger={"name": "k-async", "k": 4}, **changes)
    return scaling.measure(chosen, options, on_progress=ignore)


def test_the_speed_up_is_the_squared_ratio_of_first_and_last_value() -> None:
    found = scaled("K", [1, 4]).found
    (first, last) = found["curves"]["mean squared gradient"]["points"]
    assert [first[0], last[0]] == [1, 4]
    assert found["mean squared gradient"] == last[1]
    assert found["speed-up"] == pytest.approx((first[1] / last[1]) ** 2)
    assert found["exponent in K"] == pytest.approx(np.log(last[1] / first[1]) / np.log(4))


def test_values_that_are_equal_at_a_small_scale_are_one_run() -> None:
    found = scaled("T", [1 / 8, 1 / 4, 1], rounds=4).found
    assert [number for number, _ in found["curves"]["mean squared gradient"]["points"]] == [1, 4]
    found = scaled("K", [8, 16], rounds=4).found
    assert found["exponent in K"] is None


def test_steps_grow_with_the_root_of_k_and_fall_with_that_of_the_rounds() -> None:
    """0.5 sqrt(K / T), from the origin along the gradient: T = 1 and 4 with K = 4."""
    chosen = settings("fedavg", clients=8, trigger={"name": "k-async", "k": 4}, rounds=4)
    options = {"step": 0.5, "over": "T", "values": [1 / 4, 1]}
    rates = [variant.training.learning_rate for variant in scaling.variants(chosen, options).values()]
    assert rates == pytest.approx([1.0, 0.5])


def mixed(clients: int, **changes: Any) -> dict[str, Any]:
    options = {**QUADRATIC, "heterogeneity": 0.0, "curvature": [1.0, 1.0]}
    chosen = settings(
        "fedasync",
        {"alpha": 0.5, "staleness": "polynomial", "exponent": 0.5},
        clients=clients,
        trigger={"name": "async"},
        training={"name": "sgd", "steps": 2, "learning_rate": 0.1},
        **changes,
    )
    return dict(linear_rate.measure(chosen, options, on_progress=ignore).found)


def test_one_client_mixes_at_the_rate_computed_by_hand() -> None:
    """Each round multiplies the distance by 1 - 0.5 (1 - 0.9^2) = 0.905."""
    found = mixed(1, rounds=120)
    assert found["rate"] == pytest.approx(-np.log(0.905), rel=1e-3)
    assert found["predicted rate"] == pytest.approx(-np.log(0.905))
    assert found["rate without staleness"] == pytest.approx(-np.log(0.905))


def test_several_clients_mix_at_the_predicted_rate_which_is_lower() -> None:
    found = mixed(5, rounds=600)
    assert found["rate over the predicted one"] == pytest.approx(1, abs=0.1)
    assert found["predicted rate"] < found["rate without staleness"]


def test_a_run_that_is_too_short_has_no_rate() -> None:
    assert mixed(1, rounds=4)["rate"] is None


def test_a_slope_needs_two_places() -> None:
    assert analytic.slope([1.0, 2.0, 3.0], [1.0, 3.0, 5.0]) == pytest.approx(2)
    assert analytic.slope([1.0, 1.0], [1.0, 3.0]) is None
    assert analytic.slope([1.0, 2.0], [1.0, float("nan")]) is None


def test_a_curve_has_at_most_sixty_points_and_both_ends() -> None:
    points = analytic.curve(np.arange(1.0, 1001.0))["points"]
    assert (points[0], points[-1]) == ([1, 1.0], [1000, 1000.0])
    assert len(points) <= 60


def test_refused_updates_are_counted_by_reason() -> None:
    trajectory = Trajectory(problem=draw(QUADRATIC, 4, seed=0))
    joined = events.ClientJoined(client_id=0, at_s=0.0)
    assert trajectory.notes == {}
    for outcome, reason in (("ACCEPTED", None), ("REJECTED", "norm-too-large"), ("REJECTED", "norm-too-large")):
        made = actions.Outcome[outcome]
        trajectory.acted(
            joined, [actions.Acknowledge(client_id=0, task_id=1, outcome=made, first_outcome=made, reason=reason)]
        )
    assert trajectory.notes == {"refused": {"norm-too-large": 2}}
