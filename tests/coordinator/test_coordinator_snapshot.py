"""A coordinator with the restored state of another one behaves as that one."""

import json

import pytest

from support.coordinator_invariants import check
from support.random_runs import IN_TURN, TRIGGERS, trace
from unstale.coordinator import actions, events, snapshot
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.phase import Phase
from unstale.coordinator.settings import CoordinatorSettings
from unstale.coordinator.triggers import TRIGGERS as TRIGGER_TYPES
from unstale.settings.learning import SelectorSettings, TriggerSettings


def through_json(coordinator: Coordinator) -> Coordinator:
    copy = Coordinator(coordinator.settings)
    snapshot.restore(copy, json.loads(json.dumps(snapshot.taken(coordinator))))
    if copy.version > 0:
        check(copy)
    return copy


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger.name)
def test_a_restored_coordinator_behaves_as_the_original(trigger: TriggerSettings) -> None:
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
def test_a_restored_coordinator_with_cycles_behaves_as_the_original(name: str) -> None:
    trigger = TriggerSettings(name=name, k=3 if name == "k-async" else None)
    restored = trace(trigger, SelectorSettings(), once_a_cycle=True, before=through_json)
    assert restored == trace(trigger, SelectorSettings(), once_a_cycle=True)


def handled(coordinator: Coordinator, event: events.Event) -> list[actions.Action]:
    following = coordinator.handle(event)
    check(coordinator)
    return following


CYCLES = [trigger for trigger in TRIGGERS if TRIGGER_TYPES[trigger.name].keeps_sender()]


@pytest.mark.parametrize(
    ("trigger", "once_a_cycle"),
    [*((trigger, False) for trigger in TRIGGERS), *((trigger, True) for trigger in CYCLES)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_after_a_restore_at_a_version_the_clients_join_again(trigger: TriggerSettings, once_a_cycle: bool) -> None:
    in_rounds = TRIGGER_TYPES[trigger.name].in_rounds
    steps = iter(range(10**6))
    seen = []

    def rolled_back(coordinator: Coordinator) -> Coordinator:
        if next(steps) % 300 != 299:
            return coordinator
        state = snapshot.without_clients(snapshot.taken(coordinator), coordinator.settings.stale_rounds_max)
        copy = Coordinator(coordinator.settings)
        snapshot.restore(copy, json.loads(json.dumps(state)))
        check(copy)
        assert (copy.version, copy.tasks.count) == (coordinator.version, coordinator.tasks.count)
        assert (copy.phase, copy.membership.active, len(copy.pending)) == (Phase.GATHERING, [], 0)
        assert copy.accepted + copy.rejected == coordinator.accepted + coordinator.rejected
        seen.append(copy.version)
        return copy

    asked = {"once_a_cycle": once_a_cycle, "stale_rounds": {1: 1, 4: 3} if in_rounds else {}}
    trace(trigger, SelectorSettings(), handle=handled, before=rolled_back, **asked)
    assert len(seen) == 5
    assert seen == sorted({*seen}), "every time there are more versions"


def test_an_excluded_client_is_not_waited_for() -> None:
    settings = CoordinatorSettings(
        clients=3,
        rounds=5,
        trigger=TriggerSettings(name="async"),
        selector=SelectorSettings(),
        seed=0,
        lease_s=20.0,
        evaluate_every=1,
        retry_s=1.0,
        min_clients=None,
        excluded=frozenset({2}),
    )
    coordinator = Coordinator(settings)
    handled(coordinator, events.ClientJoined(client_id=0, at_s=0.0))
    assert coordinator.phase is Phase.GATHERING
    handled(coordinator, events.ClientJoined(client_id=1, at_s=1.0))
    assert coordinator.phase is Phase.OPEN
