"""Scenarios from plain data, and the errors about invalid ones."""

from typing import Any

import pytest

from unstale.errors import UserError
from unstale.toxics.client_filter import EXPECTED
from unstale.toxics.scenario import GROUPS_MAX, Scenario


def group(**settings: Any) -> dict[str, Any]:
    return {"groups": [{"name": "g", **settings}]}


def test_a_group_defaults_to_all_clients_without_device_and_toxics() -> None:
    made = Scenario.parsed({"groups": [{"name": "g", "toxics": None}]}, "here")
    (only,) = made.groups
    assert made.description == ""
    assert (only.clients.root, only.device, only.toxics, only.stale_rounds) == ("all", None, (), None)


WRONG: list[tuple[Any, str]] = [
    ("nothing", "here holds no scenario, expected the keys description and groups"),
    ([], "here holds no scenario, expected the keys description and groups"),
    ({}, "here: groups is null, expected a list of groups"),
    ({"groups": []}, "here: groups is [], expected a list of groups"),
    ({"groups": {"name": "g"}}, "here: groups is {'name': 'g'}, expected a list of groups"),
    ({"groups": ["g"]}, "here, group 1 is 'g', expected a mapping with a name"),
    ({"groups": [{}]}, "here, group 1: name is missing"),
    ({"groups": [{"name": 5}]}, "here, group 1: name is 5, expected a text"),
    ({"groups": [{"name": "a\nb"}]}, "here, group 1: name is 'a\\nb', expected printable characters on one line"),
    ({**group(), True: 1}, "here: True is not the name of a setting"),
    ({**group(), "grups": 1}, "here: unknown setting 'grups'; did you mean 'groups'?"),
    (group(divice={}), "here, group g: unknown setting 'divice'; did you mean 'device'?"),
    (group(clients=5), f"here, group g: clients is 5, expected {EXPECTED}"),
    (group(clients={"share": 2}), f"here, group g: clients is {{'share': 2}}, expected {EXPECTED}"),
    (group(stale_rounds=0), "here, group g: stale_rounds is 0, expected at least 1"),
    (group(toxics={"type": "drop"}), "here, group g: toxics is {'type': 'drop'}, expected a list of toxics"),
    (group(toxics=["drop"]), "here, group g, toxic 1 is 'drop', expected a mapping with a type"),
    (
        group(toxics=[{"type": "drop"}, {"type": "drip"}]),
        "here, group g, toxic 2: unknown toxic 'drip'; did you mean 'drop'?",
    ),
    (
        group(toxics=[{"type": "drop", "toxicity": 1.5}]),
        "here, group g, toxic 1 (drop): toxicity is 1.5, expected at most 1",
    ),
    (
        group(toxics=[{"type": "drop", "toxicty": 0.5}]),
        "here, group g, toxic 1 (drop): unknown setting 'toxicty'; did you mean 'toxicity'?",
    ),
    (
        group(toxics=[{"type": "latency", "delay": -1}]),
        "here, group g, toxic 1 (latency): delay.value_s is -1, expected at least 0",
    ),
    (
        group(toxics=[{"type": "drop", "clients": [-1]}]),
        f"here, group g, toxic 1 (drop): clients is [-1], expected {EXPECTED}",
    ),
    (group(device=[1]), "here, group g, device is [1], expected a mapping"),
    (group(device={"step_s": -1}), "here, group g, device: step_s is -1, expected at least 0"),
    (group(device={"stepp_s": 1}), "here, group g, device: unknown setting 'stepp_s'; did you mean 'step_s'?"),
    (group(device={}), "here, group g, device: no time is given, expected task, step_s or both"),
    (
        group(device={"task": 1, "jitter": [2, 1]}),
        "here, group g, device: jitter is [2, 1], expected two factors >= 0, the lower one first",
    ),
    (
        group(device={"task": {"distribution": "exponential", "mean_s": -1}}),
        "here, group g, device: task.mean_s is -1, expected at least 0",
    ),
    ({"groups": [{"name": "a"}, {"name": "a"}]}, "here: two groups have the name 'a'; rename one of them"),
    (
        group(toxics=[{"type": "drop", "name": "a"}, {"type": "latency", "delay": 1, "name": "a"}]),
        "here: two toxics have the name 'a'; rename one of them",
    ),
]


@pytest.mark.parametrize(("data", "sentence"), WRONG)
def test_a_mistake_gets_a_one_sentence_error_with_its_place(data: Any, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        Scenario.parsed(data, "here")
    assert str(raised.value) == sentence


def test_groups_and_toxics_are_bounded() -> None:
    many = [{"name": f"g{place}"} for place in range(GROUPS_MAX + 1)]
    for data in ({"groups": many}, group(toxics=[{"type": "drop"}] * 101)):
        with pytest.raises(UserError, match=r"at most (1000|100) items"):
            Scenario.parsed(data, "here")
