"""Events that were written down are played again: the same state, without the heartbeats in between."""

import json
from typing import Any

import pytest

from support.random_runs import IN_TURN, TRIGGERS, trace
from unstale.coordinator import events, snapshot
from unstale.coordinator.actions import Action
from unstale.coordinator.machine import LEASE, Coordinator
from unstale.coordinator.triggers import TRIGGERS as TRIGGER_TYPES
from unstale.journal import records
from unstale.journal.rows import EventRow
from unstale.settings.learning import SelectorSettings, TriggerSettings


class Recorded:
    """A coordinator's events, written down as a journal does; through JSON."""

    def __init__(self) -> None:
        self.rows: list[EventRow] = []
        self.coordinator: Coordinator

    def handle(self, coordinator: Coordinator, event: events.Event) -> list[Action]:
        self.coordinator = coordinator
        ends_leases = isinstance(event, events.TimerFired) and event.timer == LEASE
        silent = coordinator.leases.expired(event.at_s) if ends_leases else ()
        if records.is_recorded(event):
            row = records.to_row(len(self.rows) + 1, event, silent)
            fields = json.loads(json.dumps(row.fields))
            self.rows.append(EventRow(seq=row.seq, at_s=row.at_s, kind=row.kind, fields=fields))
        return coordinator.handle(event)


def decisive_state(coordinator: Coordinator) -> dict[str, Any]:
    """All but when clients were last heard of, and when that is looked at."""
    state = snapshot.taken(coordinator)
    state["leases"] = sorted(client_id for client_id, _ in state["leases"])
    state["timers"].pop(LEASE, None)
    del state["now_s"]
    return state


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger.name)
def test_played_again_they_end_in_the_same_state(trigger: TriggerSettings) -> None:
    recorded = Recorded()
    selector = IN_TURN if TRIGGER_TYPES[trigger.name].in_rounds else SelectorSettings(name="random", size=5)
    done = trace(trigger, selector, tasks_go_astray=True, handle=recorded.handle)

    played = Coordinator(recorded.coordinator.settings)
    said = [action for row in recorded.rows for action in records.replay(row, played)]

    assert len(recorded.rows) > 300
    assert decisive_state(played) == decisive_state(recorded.coordinator)
    times = ("SetTimer", "CancelTimer")
    assert [one for one in said if type(one).__name__ not in times] == [
        one for one in done if type(one).__name__ not in times
    ]


def test_a_heartbeat_and_the_operators_word_are_not_written_down() -> None:
    assert not records.is_recorded(events.HeartbeatReceived(client_id=0, at_s=1.0))
    assert not records.is_recorded(events.StopRequested(at_s=1.0))
