"""The transition tables of the coordinator: complete, enforced, and the same as in the documents."""

from typing import get_args

import pytest

import state_machines
from unstale.coordinator import events
from unstale.coordinator.machine import Coordinator, Transition
from unstale.coordinator.membership import TRANSITIONS, Membership, State
from unstale.coordinator.phase import Phase


def test_the_page_of_the_state_machines_matches_the_tables():
    assert state_machines.PAGE.read_text(encoding="utf-8") == state_machines.page(), (
        "run `python scripts/state_machines.py` and commit docs/state-machines.md"
    )


def test_every_event_but_two_is_allowed_in_every_phase():
    refused = {
        (kind, phase)
        for kind in get_args(events.Event)
        for phase in Phase
        if kind not in Coordinator.TRANSITIONS[phase]
    }
    assert refused == {
        (events.TimerFired, Phase.FINISHED),
        *((events.RoundApplied, phase) for phase in (Phase.GATHERING, Phase.IDLE, Phase.OPEN)),
    }


def test_an_event_that_the_table_does_not_allow_raises_and_changes_nothing(drive):
    driver = drive("async", clients=1)
    driver.start()
    driver.stop()
    with pytest.raises(AssertionError, match="phase finished does not allow TimerFired"):
        driver.coordinator.handle(events.TimerFired(timer="lease", at_s=7.0))
    assert driver.coordinator.now_s == 0.0


def test_a_phase_that_the_table_does_not_name_raises(drive, monkeypatch):
    driver = drive("async", clients=1)
    join = Coordinator.TRANSITIONS[Phase.GATHERING][events.ClientJoined]
    row = {events.ClientJoined: Transition(join.handler, (Phase.GATHERING,))}
    monkeypatch.setattr(Coordinator, "TRANSITIONS", {Phase.GATHERING: row})
    with pytest.raises(AssertionError, match="phase open may not follow ClientJoined"):
        driver.join(0)


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_a_client_follows_its_table_and_the_groups_are_updated(before, after):
    membership = Membership(1)
    client = membership.client(0)
    if before is not State.ABSENT:
        membership.restore(client, before)
    if after not in TRANSITIONS[before]:
        with pytest.raises(AssertionError, match=f"is {before.name}, and may not become {after.name}"):
            membership.move(client, after)
        return
    membership.move(client, after)
    expected = Membership(1)
    expected.restore(expected.client(0), after)
    assert client.state is after
    for name in ("counts", "active", "waiting", "unavailable"):
        assert getattr(membership, name) == getattr(expected, name), name
