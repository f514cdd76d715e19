"""A cell made smaller, by hand-computed sizes."""

from typing import Any

import pytest
import yaml

from unstale.config import Settings
from unstale.errors import UserError
from unstale.experiments.preset import Cell
from unstale.experiments.scale import Scale, scaled

QUARTER = Scale.of(0.25)


def cell(scenario: str | None = None, options: dict[str, Any] | None = None, **settings: Any) -> Cell:
    return Cell(
        labels={"method": "FedAvg"},
        settings=Settings(**settings),
        scenario=scenario,
        options=options or {},
        in_rounds=("iterations",) if options else (),
    )


def test_rounds_shrink_by_the_scale_and_clients_and_data_by_its_root() -> None:
    assert Scale(rounds=0.25, clients=0.5, data=0.5) == QUARTER
    small = scaled(
        cell(clients=1000, rounds=5000, evaluate_every=20, trigger={"name": "k-async", "k": 10}), QUARTER
    )
    settings = small.settings
    assert (settings.rounds, settings.evaluate_every, settings.data.share) == (1250, 20, 0.5)
    assert (settings.clients, settings.trigger.k) == (500, 5)


def test_how_stale_updates_are_stays_also_where_a_round_cannot_be_smaller() -> None:
    asked = cell(clients=1000, trigger={"name": "k-async", "k": 10})
    small = scaled(asked, Scale(clients=0.01)).settings
    assert (small.clients, small.trigger.k) == (100, 1)


def test_the_choice_of_a_round_shrinks_where_no_trigger_counts() -> None:
    asked = cell(clients=100, trigger={"name": "sync"}, selector={"name": "round-robin", "size": 10})
    small = scaled(asked, Scale(clients=0.5)).settings
    assert (small.clients, small.selector.size, small.trigger.k) == (50, 5, 5)


def test_classes_can_still_be_shared_out_evenly() -> None:
    partition = {"name": "classes", "classes": 2, "min_examples": 1}
    for clients in (80, 90, 100, 110, 120):
        small = scaled(cell(clients=clients, partition=partition, trigger={"name": "sync"}), QUARTER)
        assert small.settings.clients * 2 % 10 == 0
        assert abs(small.settings.clients - clients / 2) <= 2.5


def test_what_else_counts_rounds_shrinks_with_them() -> None:
    small = scaled(cell(options={"iterations": 15000, "size": 0.5}), Scale(rounds=0.01))
    assert small.options == {"iterations": 150, "size": 0.5}
    asked = Cell(
        labels={},
        settings=Settings(training={"schedule": {"name": "step", "every": 100}}),
        in_rounds=("training.schedule.every",),
    )
    assert scaled(asked, Scale(rounds=0.1)).settings.training.schedule.every == 10


def test_a_curve_keeps_two_points_and_a_run_four_rounds() -> None:
    small = scaled(cell(rounds=800, evaluate_every=800), Scale(rounds=0.005)).settings
    assert (small.rounds, small.evaluate_every) == (4, 2)


def test_as_many_of_the_clients_are_stale() -> None:
    scenario = yaml.safe_dump(
        {"groups": [{"name": "stale", "clients": {"holding": 5, "top": 10}, "stale_rounds": 40}]}
    )
    text = scaled(cell(scenario), Scale(clients=0.5)).scenario
    assert text is not None
    (group,) = yaml.safe_load(text)["groups"]
    assert (group["clients"], group["stale_rounds"]) == ({"holding": 5, "top": 5}, 40)


def test_full_size_is_the_cell_itself() -> None:
    asked = cell(clients=7)
    assert scaled(asked, Scale()) is asked
    assert str(Scale()) == "full size"
    assert str(Scale.of(0.01)) == "rounds x 0.01, clients x 0.1, data x 0.1"


@pytest.mark.parametrize("wrong", [0.0, -1.0, 1.5, float("nan")])
def test_a_scale_out_of_bounds_is_refused(wrong: float) -> None:
    with pytest.raises(UserError, match="expected more than 0 and at most 1"):
        Scale.of(wrong)
    with pytest.raises(UserError, match="the scale of rounds is"):
        Scale(rounds=wrong)


@pytest.mark.parametrize(("rounds", "every"), [(0.5, 20), (0.1, 20), (0.02, 4), (0.001, 1)])
def test_evaluations_are_as_far_apart_until_there_are_25(rounds: float, every: int) -> None:
    small = scaled(cell(rounds=5000, evaluate_every=20), Scale(rounds=rounds)).settings
    assert (small.rounds, small.evaluate_every) == (5000 * rounds, every)


@pytest.mark.parametrize(("clients", "data", "budget"), [(0.5, 0.5, 450), (1, 0.1, 45), (0.1, 1, 450)])
def test_what_every_client_draws_shrinks_with_what_there_is_for_it(
    clients: float, data: float, budget: int
) -> None:
    asked = cell(clients=100, partition={"name": "dirichlet-client", "budget": 450}, trigger={"name": "sync"})
    assert scaled(asked, Scale(clients=clients, data=data)).settings.partition.budget == budget


def test_the_clients_that_a_policy_waits_for_are_as_large_a_part() -> None:
    policy = {"name": "fedavg-s", "settings": {"size": 50}}
    small = scaled(cell(clients=100, policy=policy, trigger={"name": "sync"}), Scale(clients=0.3)).settings
    assert (small.clients, small.policy.settings["size"]) == (30, 15)
