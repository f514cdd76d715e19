"""A scenario resolved for the clients of one run."""

from typing import Any

import pytest

from support.toxics import Written
from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.toxics.latency import Latency
from unstale.toxics.scenario import Conditions, Scenario

TEN = Written([(0,), (1,), (2, 3), (3,), (4,), (5,), (5, 6), (7,), (8,), (9,)])


def scenario(*groups: dict[str, Any]) -> Scenario:
    return Scenario.parsed({"groups": list(groups)}, "here")


def settled(*groups: dict[str, Any], seed: int = 0) -> Conditions:
    return scenario(*groups).settled(TEN, seed)


def test_a_group_of_all_clients_lists_no_clients() -> None:
    made = settled({"name": "g", "toxics": [{"type": "drop"}]}, {"name": "h", "clients": ["0-9"]})
    assert [one.clients for one in made.toxics] == [None]


def test_a_toxic_narrows_its_group() -> None:
    made = settled(
        {"name": "g", "clients": ["0-4"], "toxics": [{"type": "drop"}, {"type": "drop", "clients": [3, "4-9"]}]}
    )
    assert [one.clients for one in made.toxics] == [{0, 1, 2, 3, 4}, {3, 4}]


def test_toxics_stay_in_order_and_get_distinct_names() -> None:
    drop, named = {"type": "drop"}, {"type": "drop", "name": "g/drop-2"}
    made = settled({"name": "g", "toxics": [drop, drop, named]}, {"name": "h", "toxics": [drop]})
    assert [one.toxic.name for one in made.toxics] == ["g/drop", "g/drop-3", "g/drop-2", "h/drop"]


def test_a_later_group_overrides_device_and_staleness() -> None:
    made = settled(
        {"name": "all", "device": {"task": 1}, "stale_rounds": 3},
        {"name": "some", "clients": [1, 2], "device": {"task": 5}},
        {"name": "last", "clients": [2], "stale_rounds": 4},
    )
    assert [made.devices.duration_s(client, 0, 5) for client in range(4)] == [1, 5, 5, 1]
    assert dict(made.stale_rounds) == {client: 4 if client == 2 else 3 for client in range(10)}


def test_without_dropouts_by_rounds_there_is_no_availability() -> None:
    assert settled({"name": "g", "toxics": [{"type": "drop"}]}).availability is None
    assert settled({"name": "g", "toxics": [{"type": "dropout", "on_s": 1, "off_s": 1}]}).availability is None


def test_the_strictest_dropout_by_rounds_gives_the_availability() -> None:
    half = {"type": "dropout", "p": 0.5}
    made = settled(
        {"name": "g", "toxics": [half]},
        {
            "name": "h",
            "clients": [1, 2],
            "toxics": [{"type": "dropout", "p": 0.3}, {"type": "dropout", "p": 0.2, "clients": [2]}],
        },
    )
    assert made.availability == pytest.approx((0.5, 0.3, 0.2, *[0.5] * 7))


def test_drawn_availability_is_from_its_stream_and_at_least_its_minimum() -> None:
    made = settled({"name": "g", "toxics": [{"type": "dropout", "p_min": 0.4}]}, seed=3)
    assert made.availability == pytest.approx(
        [0.4 + 0.6 * float(stream(3, Stream.AVAILABILITY, client).random()) for client in range(10)]
    )


def test_adversarial_availability_grows_with_the_smallest_class() -> None:
    # docs/methods/heterogeneity.md#availability: p_i = 0.1 + 0.9 * c_i / 9
    made = settled({"name": "g", "toxics": [{"type": "dropout", "p_min": 0.1, "by": "adversarial"}]})
    smallest = [0, 1, 2, 3, 4, 5, 5, 7, 8, 9]
    assert made.availability == pytest.approx([0.1 + 0.1 * label for label in smallest])


def test_some_clients_can_be_stale_and_others_absent() -> None:
    made = settled(
        {"name": "late", "clients": [0], "stale_rounds": 2},
        {"name": "away", "clients": [1], "toxics": [{"type": "dropout", "p": 0.5}]},
        {"name": "all", "toxics": [{"type": "dropout", "on_s": 5, "off_s": 5}]},
    )
    assert (dict(made.stale_rounds), made.availability) == ({0: 2}, (1.0, 0.5, *[1.0] * 8))


def test_clients_of_a_class_can_be_stale() -> None:
    made = settled({"name": "g", "clients": {"holding": 5}, "stale_rounds": 40})
    assert dict(made.stale_rounds) == {5: 40, 6: 40}


def test_the_same_seed_gives_the_same_clients_and_another_seed_others() -> None:
    group = {"name": "g", "clients": {"share": 0.5}, "stale_rounds": 1}
    drawn = [frozenset(settled(group, seed=seed).stale_rounds) for seed in (1, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_scaling_multiplies_times_and_divides_rates_only() -> None:
    made = scenario(
        {
            "name": "g",
            "clients": ["0-9"],
            "stale_rounds": 4,
            "device": {
                "task": {"distribution": "lognormal", "median_s": 2, "sigma": 0.5},
                "step_s": 0.1,
                "factor": 3,
                "spread": 0.5,
                "jitter": [0.9, 1.1],
            },
            "toxics": [
                {"type": "bandwidth", "bytes_per_s": 1000, "start_s": 2, "end_s": 8},
                {"type": "latency", "toxicity": 0.5, "delay": 0.4},
                {"type": "latency", "delay": {"distribution": "trace", "steps_s": [[0, 1], [10, 2]]}},
                {"type": "latency", "delay": {"distribution": "trace", "values_s": [1, 2]}},
                {"type": "dropout", "present": [{"client": one, "intervals_s": [[0, 4]]} for one in range(10)]},
            ],
        }
    ).scaled(0.5)
    expected = scenario(
        {
            "name": "g",
            "clients": ["0-9"],
            "stale_rounds": 4,
            "device": {
                "task": {"distribution": "lognormal", "median_s": 1, "sigma": 0.5},
                "step_s": 0.05,
                "factor": 3,
                "spread": 0.5,
                "jitter": [0.9, 1.1],
            },
            "toxics": [
                {"type": "bandwidth", "bytes_per_s": 2000, "start_s": 1, "end_s": 4},
                {"type": "latency", "toxicity": 0.5, "delay": 0.2},
                {"type": "latency", "delay": {"distribution": "trace", "steps_s": [[0, 0.5], [5, 1]]}},
                {"type": "latency", "delay": {"distribution": "trace", "values_s": [0.5, 1]}},
                {"type": "dropout", "present": [{"client": one, "intervals_s": [[0, 2]]} for one in range(10)]},
            ],
        }
    )
    assert made.groups[0].device == expected.groups[0].device
    for one, other in zip(made.groups[0].toxics, expected.groups[0].toxics, strict=True):
        assert one == other
    assert made == expected


def test_scaling_by_one_changes_nothing() -> None:
    made = scenario({"name": "g", "device": {"task": 0.1}, "toxics": [{"type": "drop"}]})
    assert made.scaled(1) == made


@pytest.mark.parametrize(
    ("group", "factor", "sentence"),
    [
        (
            {"toxics": [{"type": "drop"}, {"type": "dropout", "on_s": 5, "off_s": 5}]},
            1e-4,
            "group g, toxic 2 (dropout), its times multiplied by scenario.time_scale 0.0001: on_s is 0.0005, "
            "expected at least 0.001",
        ),
        (
            {"device": {"task": 1e5}},
            1e6,
            "group g, device, its times multiplied by scenario.time_scale 1e+06: task.value_s is 100000000000.0, "
            "expected at most 1e+09",
        ),
    ],
)
def test_scaled_times_keep_their_bounds(group: dict[str, Any], factor: float, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        scenario({"name": "g", **group}).scaled(factor)
    assert str(raised.value) == sentence


def test_resolving_leaves_the_scenario_unchanged() -> None:
    made = scenario({"name": "g", "toxics": [{"type": "latency", "delay": 1}]})
    made.settled(TEN, 0)
    (toxic,) = made.groups[0].toxics
    assert isinstance(toxic, Latency)
    assert toxic.name == ""


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        (
            {"name": "g", "clients": [10]},
            "group g: clients is [10], but client 10 is none of the 10 clients of this run, whose ids are 0 to 9",
        ),
        (
            {"name": "g", "clients": ["0-4"], "toxics": [{"type": "drop", "clients": [7]}]},
            "group g, toxic 1 (drop): clients is [7], which matches nobody; name others",
        ),
        (
            {"name": "g", "toxics": [{"type": "dropout", "present": [{"client": 0, "intervals_s": [[0, 1]]}]}]},
            "group g, toxic 1 (dropout): trace has no row for client 1; add one, or set clients to those in the trace",
        ),
        (
            {"name": "g", "clients": [3, 4], "stale_rounds": 2, "toxics": [{"type": "dropout", "p": 0.5}]},
            "toxic g/dropout is a dropout by rounds and touches client 3, which has stale_rounds 2; "
            "give a client one of them",
        ),
    ],
)
def test_a_scenario_invalid_for_these_clients_gets_a_one_sentence_error(group: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        settled(group)
    assert str(raised.value) == sentence
