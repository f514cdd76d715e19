"""Invalid settings, each with its one-sentence error."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from unstale.coordinator.settings import CoordinatorSettings
from unstale.errors import UserError
from unstale.settings.learning import SelectorSettings, TriggerSettings


def settings(**changes: Any) -> CoordinatorSettings:
    given: dict[str, Any] = {
        "clients": 10,
        "rounds": 5,
        "trigger": TriggerSettings(name="k-async", k=3),
        "selector": SelectorSettings(),
        "seed": 0,
        "lease_s": 10.0,
        "evaluate_every": 1,
        "retry_s": 1.0,
        "min_clients": None,
    }
    return CoordinatorSettings(**(given | changes))


def test_min_clients_is_all_of_them_unless_given():
    assert settings().clients_to_start == 10
    assert settings(min_clients=4).clients_to_start == 4


@pytest.mark.parametrize(
    ("trigger", "selector", "round_size", "unaggregated"),
    [
        (TriggerSettings(name="k-async", k=3), SelectorSettings(), 3, 10),
        (TriggerSettings(name="k-sync", k=3), SelectorSettings(), 3, 10),
        (TriggerSettings(name="async"), SelectorSettings(), 1, 10),
        (TriggerSettings(name="sync"), SelectorSettings(), 10, 10),
        (TriggerSettings(name="sync"), SelectorSettings(name="random", size=4), 4, 10),
        (TriggerSettings(name="deadline", wait_s=1.0), SelectorSettings(name="random", size=4), 10, 10),
        # 3 in aggregation, 2 pending, then one from each of the 10 clients.
        (TriggerSettings(name="buffered", k=3), SelectorSettings(), 3, 15),
    ],
)
def test_the_settings_bound_the_unaggregated_updates(trigger, selector, round_size, unaggregated):
    made = settings(trigger=trigger, selector=selector)
    assert made.round_size_max == round_size
    assert made.unaggregated_max == unaggregated


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"name": "k-asink", "k": 3}, "unknown trigger 'k-asink'; did you mean 'k-async'?"),
        ({"name": "x"}, "unknown trigger 'x'; expected one of async, buffered, deadline, k-async, k-sync, sync"),
        ({"name": "k-async", "k": None}, "trigger 'k-async' needs trigger.k, and none was given"),
        ({"name": "deadline"}, "trigger 'deadline' needs trigger.wait_s, and none was given"),
        ({"name": "sync", "k": 3}, "trigger 'sync' takes no trigger.k, got 3; leave it out"),
        ({"name": "async", "k": 1}, "trigger 'async' takes no trigger.k, got 1; leave it out"),
        (
            {"name": "buffered", "k": 1, "wait_s": 2.0},
            "trigger 'buffered' takes no trigger.wait_s, got 2.0; leave it out",
        ),
    ],
)
def test_an_invalid_trigger_gets_a_one_sentence_error(given, sentence):
    with pytest.raises(UserError) as raised:
        settings(trigger=TriggerSettings(**given))
    assert str(raised.value) == sentence


@pytest.mark.parametrize("wrong", [{"k": 0}, {"wait_s": 0.0}, {"wait_s": float("inf")}])
def test_values_of_a_trigger_out_of_bounds_are_refused(wrong):
    with pytest.raises(ValidationError):
        TriggerSettings(**wrong)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"name": "randon", "size": 3}, "unknown selector 'randon'; did you mean 'random'?"),
        ({"name": "random"}, "selector 'random' needs selector.size, and none was given"),
        ({"name": "all", "size": 3}, "selector 'all' takes no selector.size, got 3; leave it out"),
        ({"name": "round-robin"}, "selector 'round-robin' needs selector.size, and none was given"),
        (
            {"name": "availability", "size": 3},
            "selector 'availability' needs a scenario with a dropout by rounds, and none was given",
        ),
    ],
)
def test_an_invalid_selector_gets_a_one_sentence_error(given, sentence):
    with pytest.raises(UserError) as raised:
        settings(selector=SelectorSettings(**given))
    assert str(raised.value) == sentence


def test_a_size_of_a_selector_out_of_bounds_is_refused():
    with pytest.raises(ValidationError):
        SelectorSettings(name="random", size=0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clients": 0}, "clients is 0, expected at least 1"),
        ({"rounds": 0}, "rounds is 0, expected at least 1"),
        ({"evaluate_every": 0}, "evaluate_every is 0, expected at least 1"),
        ({"seed": -1}, "seed is -1, expected 0 or more"),
        ({"lease_s": 0.0}, "lease_s is 0.0, expected a number of seconds above 0"),
        ({"lease_s": float("nan")}, "lease_s is nan, expected a number of seconds above 0"),
        ({"retry_s": -1.0}, "retry_s is -1.0, expected a number of seconds above 0"),
        ({"min_clients": 0}, "min_clients is 0 with 10 clients, expected 1 to 10"),
        ({"min_clients": 11}, "min_clients is 11 with 10 clients, expected 1 to 10"),
        ({"clients": 2}, "trigger.k is 3 with 2 clients, expected 1 to 2"),
        (
            {"selector": SelectorSettings(name="random", size=11)},
            "selector.size is 11 with 10 clients, expected 1 to 10",
        ),
        (
            {"selector": SelectorSettings(name="random", size=2)},
            "trigger.k is 3 with selector.size 2, expected at most 2: "
            "a k-async round never sees more updates than clients that were selected",
        ),
        (
            {"selector": SelectorSettings(name="round-robin", size=5)},
            "selector.name is 'round-robin' with trigger 'k-async', expected trigger sync or k-sync or deadline: "
            "it gives each round to the clients whose turn it is",
        ),
        (
            {"stale_rounds": {3: 5}},
            "trigger.name is 'k-async' with clients that are stale by a number of rounds, expected sync or k-sync or "
            "deadline: in other loops staleness comes from latency",
        ),
        (
            {"trigger": TriggerSettings(name="sync"), "stale_rounds": {10: 1}},
            "stale_rounds names client 10 with 10 clients, expected 0 to 9",
        ),
        (
            {"trigger": TriggerSettings(name="sync"), "stale_rounds": {4: 0}},
            "stale_rounds of client 4 is 0, expected at least 1",
        ),
    ],
)
def test_incompatible_settings_get_a_one_sentence_error(changes, sentence):
    with pytest.raises(UserError) as raised:
        settings(**changes)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    "trigger",
    [
        TriggerSettings(name="sync"),
        TriggerSettings(name="k-sync", k=3),
        TriggerSettings(name="deadline", wait_s=1.0),
        TriggerSettings(name="buffered", k=3),
    ],
)
def test_a_once_per_cycle_contribution_requires_clients_that_wait_for_their_round(trigger):
    with pytest.raises(UserError) as raised:
        settings(trigger=trigger, once_a_cycle=True)
    assert str(raised.value) == (
        f"trigger.name is '{trigger.name}' with a policy whose clients contribute once a cycle, "
        "expected k-async or async"
    )


@pytest.mark.parametrize("trigger", [TriggerSettings(name="k-async", k=3), TriggerSettings(name="async")])
def test_parked_updates_have_the_same_bound_as_others(trigger):
    assert settings(trigger=trigger, once_a_cycle=True).unaggregated_max == 10


def test_a_buffer_may_be_larger_than_the_number_of_busy_clients():
    made = settings(trigger=TriggerSettings(name="buffered", k=3), selector=SelectorSettings(name="random", size=2))
    assert made.round_size_max == 3


def test_stale_rounds_are_stored_as_a_read_only_copy():
    given = {3: 5}
    made = settings(trigger=TriggerSettings(name="sync"), stale_rounds=given)
    given[4] = 1
    assert made.stale_rounds == {3: 5}
    assert made.stale_rounds_max == 5
    with pytest.raises(TypeError):
        made.stale_rounds[4] = 1  # type: ignore[index]
    assert replace(made, rounds=7).stale_rounds == {3: 5}


def test_without_stale_clients_every_task_is_on_the_current_version():
    assert settings().stale_rounds == {}
    assert settings().stale_rounds_max == 0


@pytest.mark.parametrize("name", ["all", "random"])
def test_a_selector_that_does_not_use_availability_ignores_it(name):
    selector = SelectorSettings(name=name, size=None if name == "all" else 3)
    assert settings(selector=selector, availability=(0.5,) * 10).round_size_max == 3
