"""The data of `unstale scenario show`: tasks and updates simulated through a scenario."""

from typing import Any

import pytest

from support.toxics import Written
from unstale.toxics.preview import BINS, NO_GROUP, PLAYED_MAX, TASKS_MAX, Preview, preview
from unstale.toxics.scenario import Scenario


def preview_of(*groups: dict[str, Any], clients: int = 4, seconds: float = 100.0) -> Preview:
    scenario = Scenario.parsed({"groups": list(groups)}, "here")
    population = Written([(0,)] * clients)
    return preview(
        scenario, scenario.settled(population, 0), population, seed=0, payload_bytes=800, steps=10, seconds=seconds
    )


def test_a_round_trip_is_shown_by_leg() -> None:
    # 800 bytes and 200 of a header at 500 bytes/s: 2 s down; 10 steps of 0.3 s; 0.25 s up.
    group = {
        "name": "g",
        "device": {"step_s": 0.3},
        "toxics": [
            {"type": "bandwidth", "direction": "down", "bytes_per_s": 500},
            {"type": "latency", "direction": "up", "delay": 0.25},
        ],
    }
    (seen,) = preview_of(group).groups
    assert seen.seen.down_s == pytest.approx((2.0,) * 4 * 20)  # 5.25 s each, in 100 s
    assert seen.seen.computing_s == pytest.approx((3.0,) * 4 * 20)
    assert seen.seen.up_s == pytest.approx((0.25,) * 4 * 20)
    assert (seen.seen.tasks_lost, seen.seen.updates_lost, seen.seen.declined) == (0, 0, 0)


def test_a_client_gets_its_next_task_after_its_update() -> None:
    # 10 s down and 10 s up: five round trips in 100 s. Tasks each 2.5 s would queue.
    (seen,) = preview_of({"name": "g", "toxics": [{"type": "bandwidth", "bytes_per_s": 100}]}).groups
    assert seen.seen.down_s == seen.seen.up_s == pytest.approx((10.0,) * 4 * 5)


def test_lost_and_declined_tasks_are_counted_separately() -> None:
    lost = {"name": "g", "toxics": [{"type": "drop", "messages": ["update"]}]}
    (seen,) = preview_of(lost).groups
    assert (seen.seen.tasks_lost, seen.seen.updates_lost, seen.seen.declined) == (0, 1, 0)
    (seen,) = preview_of({"name": "g", "toxics": [{"type": "drop", "messages": ["task"]}]}).groups
    assert (seen.seen.tasks_lost, seen.seen.updates_lost, seen.seen.updates) == (1, None, 0)
    (seen,) = preview_of({"name": "g", "toxics": [{"type": "dropout", "p": 0}]}).groups
    assert (seen.seen.tasks_lost, seen.seen.declined) == (0, 4 * TASKS_MAX)
    (seen,) = preview_of({"name": "g", "toxics": [{"type": "disconnect", "messages": ["task"]}]}).groups
    assert seen.seen.tasks_lost == 1


def test_a_blackout_appears_in_the_time_line_and_a_drop_does_not() -> None:
    group = {
        "name": "g",
        "toxics": [
            {"type": "blackout", "clients": [1, 2], "start_s": 25, "end_s": 50},
            {"type": "drop", "toxicity": 0.5},
        ],
    }
    seen = preview_of(group)
    quarter = BINS // 4
    assert seen.groups[0].share_available == (1.0,) * quarter + (0.5,) * quarter + (1.0,) * 2 * quarter
    assert (seen.by_time, seen.by_rounds) == (True, False)


@pytest.mark.parametrize("layer", ["message", "tcp"])
def test_a_blackout_shows_on_either_layer(layer: str) -> None:
    group = {"name": "g", "toxics": [{"type": "blackout", "start_s": 50, "end_s": 100, "layer": layer}]}
    (seen,) = preview_of(group).groups
    assert seen.share_available == (1.0,) * (BINS // 2) + (0.0,) * (BINS // 2)


def test_a_dropout_by_rounds_shows_by_rounds() -> None:
    seen = preview_of({"name": "g", "toxics": [{"type": "dropout", "p": 0.5}]}, clients=100)
    assert (seen.by_time, seen.by_rounds) == (False, True)
    there = [one for client in seen.groups[0].available for one in client]
    # Binomial(6000, 1/2): sd 38.7; four of them either way.
    assert abs(sum(there) - 3000) < 155


def test_without_absences_all_clients_are_present() -> None:
    seen = preview_of({"name": "g"})
    assert (seen.by_time, seen.by_rounds) == (False, False)
    assert seen.groups[0].share_available == (1.0,) * BINS


def test_clients_without_a_group_are_shown_and_clients_in_two_groups_count_in_both() -> None:
    seen = preview_of(
        {"name": "a", "clients": [0, 1], "device": {"task": 1}},
        {"name": "b", "clients": [1, 2], "device": {"task": 2}, "stale_rounds": 7},
    )
    assert [(one.name, one.client_ids, one.stale_rounds) for one in seen.groups] == [
        ("a", (0, 1), None),
        ("b", (1, 2), 7),
        (NO_GROUP, (3,), None),
    ]
    assert [set(one.seen.computing_s) for one in seen.groups] == [{1.0, 2.0}, {2.0}, {0.0}]


def test_a_sample_of_many_clients_is_simulated() -> None:
    (seen,) = preview_of({"name": "g"}, clients=1000).groups
    assert seen.clients == 1000
    assert seen.client_ids == tuple(range(0, 1000, 1000 // PLAYED_MAX))
