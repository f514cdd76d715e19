"""A coordinator that is put into the state of another one does what that one does."""

import json

import pytest

from support.random_runs import IN_TURN, TRIGGERS, trace
from unstale.coordinator import snapshot
from unstale.coordinator.invariants import check
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.settings import SelectorSettings, TriggerSettings
from unstale.coordinator.triggers import TRIGGERS as TRIGGER_TYPES


def through_json(coordinator: Coordinator) -> Coordinator:
    copy = Coordinator(coordinator.settings)
    snapshot.restore(copy, json.loads(json.dumps(snapshot.taken(coordinator))))
    if copy.version > 0:
        check(copy)
    return copy


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger.name)
def test_a_restored_coordinator_goes_on_as_the_one_it_was_taken_of(trigger: TriggerSettings) -> None:
    in_rounds = TRIGGER_TYPES[trigger.name].in_rounds
    selector = IN_TURN if in_rounds else SelectorSettings(name="random", size=5)
    asked = {"tasks_go_astray": True, "stale_rounds": {1: 1, 4: 3} if in_rounds else {}}
    steps = iter(range(10**6))
    restored = trace(
        trigger,
        selector,
        **asked,
        before=lambda coordinator: coordinator if next(steps) % 7 else through_json(coordinator),
    )
    assert restored == trace(trigger, selector, **asked)


@pytest.mark.parametrize("name", ["k-async", "async"])
def test_so_does_one_whose_clients_contribute_once_a_cycle(name: str) -> None:
    trigger = TriggerSettings(name=name, k=3 if name == "k-async" else None)
    restored = trace(trigger, SelectorSettings(), once_a_cycle=True, before=through_json)
    assert restored == trace(trigger, SelectorSettings(), once_a_cycle=True)
