"""A scaled cell against hand-computed sizes."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from unstale.config import Settings
from unstale.errors import UserError
from unstale_papers.preset import Cell
from unstale_papers.scale import Scale, lost, scaled

QUARTER = Scale.of(0.25)


def cell(scenario: str | None = None, options: dict[str, Any] | None = None, **settings: Any) -> Cell:
    return Cell(
        labels={"method": "FedAvg"},
        settings=Settings(**settings),
        scenario=scenario,
        options=options or {},
        in_iterations=("iterations",) if options else (),
    )


def test_rounds_and_iterations_scale_linearly_and_clients_and_data_by_the_root() -> None:
    assert Scale(rounds=0.25, clients=0.5, data=0.5, iterations=0.25) == QUARTER
    small = scaled(cell(clients=1000, rounds=5000, evaluate_every=20, trigger={"name": "k-async", "k": 10}), QUARTER)
    settings = small.settings
    assert (settings.rounds, settings.evaluate_every, settings.data.share) == (1250, 12, 0.5)
    assert (settings.clients, settings.trigger.k) == (500, 5)


def test_staleness_is_preserved_also_at_the_smallest_round() -> None:
    asked = cell(clients=1000, trigger={"name": "k-async", "k": 10})
    small = scaled(asked, Scale(clients=0.01)).settings
    assert (small.clients, small.trigger.k) == (100, 1)


def test_the_selection_of_a_round_scales_without_a_counting_trigger() -> None:
    asked = cell(clients=100, trigger={"name": "sync"}, selector={"name": "round-robin", "size": 10})
    small = scaled(asked, Scale(clients=0.5)).settings
    assert (small.clients, small.selector.size, small.trigger.k) == (50, 5, 5)


def test_classes_still_divide_evenly_among_clients() -> None:
    partition = {"name": "classes", "classes": 2, "min_examples": 1}
    for clients in (80, 90, 100, 110, 120):
        small = scaled(cell(clients=clients, partition=partition, trigger={"name": "sync"}), QUARTER)
        assert small.settings.clients * 2 % 10 == 0
        assert abs(small.settings.clients - clients / 2) <= 2.5


def test_other_settings_in_rounds_scale_with_them() -> None:
    asked = Cell(
        labels={},
        settings=Settings(training={"schedule": {"name": "step", "every": 100}}),
        in_rounds=("training.schedule.every",),
    )
    assert scaled(asked, Scale(rounds=0.1)).settings.training.schedule.every == 10


def test_a_number_of_rounds_that_a_search_sets_to_null_stays_null() -> None:
    chosen = {"name": "wkafl", "settings": {"stage_two_round": None, "stage_two_loss": 0.4}}
    asked = replace(cell(policy=chosen), in_rounds=("policy.settings.stage_two_round",))
    assert scaled(asked, Scale(rounds=0.1)).settings.policy.settings == chosen["settings"]


def test_iterations_scale_independently() -> None:
    asked = cell(options={"iterations": 15000, "size": 0.5})
    assert scaled(asked, Scale(iterations=0.01)).options == {"iterations": 150, "size": 0.5}
    assert scaled(asked, Scale(rounds=0.01)).options["iterations"] == 15000
    assert scaled(asked, Scale.of(0.1)).options["iterations"] == 1500


def test_iterations_have_no_effect_on_cells_without_inversion() -> None:
    fewer, inverting = Scale(iterations=0.1), cell(options={"iterations": 15000})
    assert scaled(cell(clients=7), fewer).settings.clients == 7
    assert (fewer.at([cell()]), fewer.at([cell(), inverting])) == (Scale(), fewer)
    assert Scale.of(0.25).at([cell()]).slug == "rounds-0.25-clients-0.5-data-0.5"
    assert Scale.of(0.25).slug == "rounds-0.25-clients-0.5-data-0.5-iterations-0.25"
    assert Scale().slug == "full"


def test_a_curve_has_at_least_two_points_and_a_run_four_rounds() -> None:
    small = scaled(cell(rounds=800, evaluate_every=800), Scale(rounds=0.005)).settings
    assert (small.rounds, small.evaluate_every) == (4, 2)


def test_the_share_of_stale_clients_is_preserved() -> None:
    scenario = yaml.safe_dump({"groups": [{"name": "stale", "clients": {"holding": 5, "top": 10}, "stale_rounds": 40}]})
    text = scaled(cell(scenario), Scale(clients=0.5)).scenario
    assert text is not None
    (group,) = yaml.safe_load(text)["groups"]
    assert (group["clients"], group["stale_rounds"]) == ({"holding": 5, "top": 5}, 40)


def test_full_size_is_the_cell_itself() -> None:
    asked = cell(clients=7)
    assert scaled(asked, Scale()) is asked
    assert str(Scale()) == "full size"
    assert str(Scale(rounds=0.01, clients=0.1)) == "rounds x 0.01, clients x 0.1"
    assert str(Scale.of(0.01)) == "rounds x 0.01, clients x 0.1, data x 0.1, iterations x 0.01"


@pytest.mark.parametrize("wrong", [0.0, -1.0, 1.5, float("nan")])
def test_a_scale_out_of_bounds_is_refused(wrong: float) -> None:
    with pytest.raises(UserError, match="expected more than 0 and at most 1"):
        Scale.of(wrong)
    with pytest.raises(UserError, match="the scale of rounds is"):
        Scale(rounds=wrong)
    with pytest.raises(UserError, match="the scale of iterations is"):
        Scale(iterations=wrong)


@pytest.mark.parametrize(("rounds", "every"), [(0.5, 20), (0.4, 20), (0.1, 5), (0.02, 1), (0.001, 1)])
def test_evaluations_keep_their_interval_up_to_100(rounds: float, every: int) -> None:
    small = scaled(cell(rounds=5000, evaluate_every=20), Scale(rounds=rounds)).settings
    assert (small.rounds, small.evaluate_every) == (5000 * rounds, every)


@pytest.mark.parametrize(
    ("rounds", "every"),
    [
        (0.5, 5),  # 500 rounds, every fifth evaluated: 100 as at full size, so 20 losses
        (0.05, 5),  # 50 evaluations, of which every fifth
    ],
)
def test_losses_of_all_examples_are_no_more_frequent_than_at_full_size(rounds: float, every: int) -> None:
    asked = cell(options={"training_loss_every": 5}, rounds=1000, evaluate_every=10)
    asked = replace(asked, in_iterations=())
    assert scaled(asked, Scale(rounds=rounds)).options == {"training_loss_every": every}
    # 200 rounds, every fifth evaluated, every fourth of these with a loss: 10. Of 100 rounds every second is evaluated.
    short = replace(cell(rounds=200, evaluate_every=5), options={"training_loss_every": 4})
    assert scaled(short, Scale(rounds=0.5)).options == {"training_loss_every": 5}


@pytest.mark.parametrize(("clients", "data", "budget"), [(0.5, 0.5, 450), (1, 0.1, 45), (0.1, 1, 450)])
def test_the_examples_per_client_scale_and_the_data_set_does_not(clients: float, data: float, budget: int) -> None:
    asked = cell(clients=100, partition={"name": "dirichlet-client", "budget": 450}, trigger={"name": "sync"})
    small = scaled(asked, Scale(clients=clients, data=data)).settings
    assert (small.partition.budget, small.data.share) == (budget, 1)


# Notes on lost properties


def test_rounds_of_few_updates_are_noted() -> None:
    asked = [cell(clients=1000, trigger={"name": "k-async", "k": 10})] * 2
    assert lost(asked, Scale(clients=0.5)) == []
    (note,) = lost(asked, Scale(clients=0.4))
    assert note.startswith("A round has 4 updates here, 10 at full size")
    (note,) = lost(asked, Scale.of(0.01))
    assert note.startswith("A round has 1 update here") and "DynSGD, REFL and TWAFL are FedAvg" in note
    assert lost([cell(trigger={"name": "k-async", "k": 3})], Scale(clients=1)) == []
    assert lost([cell(trigger={"name": "sync"})], Scale.of(0.01)) == []


def late(**changes: Any) -> Cell:
    """A cell of 800 rounds with some clients 40 rounds late."""
    groups = [{"name": "stale", "clients": {"holding": 5, "top": 10}, "stale_rounds": 40}]
    return cell(yaml.safe_dump({"groups": groups}), rounds=800, trigger={"name": "sync"}, **changes)


def test_unreachable_staleness_is_noted() -> None:
    # In round 41 the first update is 40 rounds late.
    assert lost([late()], Scale(rounds=41 / 800)) == []
    assert lost([late()], Scale(rounds=0.05)) == [
        "Who is 40 rounds late is so after 40 rounds, and these runs have 40: nobody is late in them."
    ]
    assert lost([replace(late(), measurement="inversion cost")], Scale(rounds=0.05)) == []


def test_an_inversion_that_ends_before_the_first_stale_update_is_noted() -> None:
    until = {"name": "gradient-inversion", "settings": {"last_round": 155}}
    assert lost([late(compensator=until)], Scale(rounds=0.5)) == []  # 78
    assert lost([late(compensator=until)], Scale(rounds=0.25)) == [  # 39
        "Who is 40 rounds late is so after 40 rounds, and some runs end inversion after 39: there is nothing to invert "
        "in them."
    ]


def test_errors_beyond_the_length_of_a_run_are_noted() -> None:
    asked = replace(cell(rounds=200), options={"staleness": (0, 30, 60)}, measurement="staleness errors")
    assert lost([asked], Scale(rounds=0.3)) == []
    assert lost([asked], Scale(rounds=0.25)) == [
        "Errors are looked at for updates up to 60 rounds late, and these runs have 50: of what is older there is no "
        "number."
    ]


def test_cells_that_scaling_makes_equal_are_noted() -> None:
    def by(clients: int, method: str) -> Cell:
        labels = {"clients": str(clients), "method": method}
        asked = cell(clients=clients, policy={"name": method}, trigger={"name": "sync"})
        return replace(asked, labels=labels)

    asked = [by(clients, method) for clients in (8, 9, 12) for method in ("fedavg", "mifa")]
    assert lost(asked, Scale(clients=0.9)) == []  # 7, 8 and 11
    assert lost(asked, Scale(clients=0.5)) == [
        "Where they differ at full size, clients=8 and clients=9 are one and the same run here."
    ]


def test_the_share_of_clients_that_a_policy_waits_for_is_preserved() -> None:
    policy = {"name": "fedavg-s", "settings": {"size": 50}}
    small = scaled(cell(clients=100, policy=policy, trigger={"name": "sync"}), Scale(clients=0.3)).settings
    assert (small.clients, small.policy.settings["size"]) == (30, 15)
