"""Tasks that clients do not answer in time, by transcript. `conftest.py` explains the words."""

import pytest

from unstale.coordinator import events, snapshot
from unstale.coordinator.machine import Coordinator


def expire(driver, client_id):
    """The open task of a client expires."""
    task_id = driver.coordinator.membership.clients[client_id].tasks.open_id
    return driver.handle(events.TaskExpired(client_id=client_id, task_id=task_id, at_s=driver.now_s))


def test_a_round_of_all_goes_on_without_the_client_that_does_not_answer(drive):
    driver = drive("sync", clients=2)
    driver.start()
    assert driver.updates(1) == []
    assert expire(driver, 0) == ["round v0: 1+0"]
    assert driver.coordinator.failed == 1
    assert driver.coordinator.is_active(0)


def test_who_does_not_answer_sits_out_a_round_and_then_seven_and_an_update_makes_it_one_again(drive):
    driver = drive("sync", clients=2, rounds=50)
    driver.start()

    def rounds_without_0():
        count = 0
        while driver.coordinator.membership.clients[0].tasks.open_id is None:
            driver.updates(1)
            driver.applied()
            count += 1
        return count - 1  # the round in which its task expired is the first

    expire(driver, 0)
    assert rounds_without_0() == 1
    expire(driver, 0)
    assert rounds_without_0() == 7
    driver.updates(0, 1)
    driver.applied()
    expire(driver, 0)
    assert rounds_without_0() == 1


def test_it_is_nobodys_divergence(drive):
    driver = drive("async", clients=1)
    driver.start()
    expire(driver, 0)
    assert driver.coordinator.consecutive_failures == 0


@pytest.mark.parametrize("trigger", ["sync", "async"])
def test_where_all_sit_out_they_are_asked_again_after_a_pause_and_no_empty_version_is_made(drive, trigger):
    driver = drive(trigger, clients=2)
    driver.start()
    assert expire(driver, 0) == []
    (retry,) = expire(driver, 1)
    assert retry.startswith("set retry")
    driver.at(driver.coordinator.timers["retry"])
    told = driver.handle(events.TimerFired(timer="retry", at_s=driver.now_s))
    assert [words for words in told if words.startswith("task")] == ["task 0 #3 v0 n1", "task 1 #4 v0 n1"]
    assert driver.coordinator.version == 0


def test_to_leave_and_come_back_ends_no_pause(drive):
    driver = drive("async", clients=2)
    driver.start()
    expire(driver, 0)
    driver.leave(0)
    assert not [words for words in driver.join(0) if words.startswith("task")]
    assert driver.coordinator.clients_by_state["unavailable"] == 1


def test_a_late_answer_is_rejected_as_expired(drive):
    driver = drive("async", clients=2)
    driver.start()
    expire(driver, 0)
    assert driver.update(0, task_id=1) == ["ack 0 #1 rejected expired-task", "discard 1"]


def test_a_snapshot_holds_who_sits_out_and_one_of_before_has_nobody(drive):
    driver = drive("sync", clients=2)
    driver.start()
    expire(driver, 0)
    state = snapshot.taken(driver.coordinator)
    other = Coordinator(driver.coordinator.settings)
    snapshot.restore(other, state)
    assert other.membership.sits_out == {0: 2}
    assert other.membership.clients[0].expired == 1
    del state["sits_out"]
    for client in state["clients"]:
        del client["expired"]
    old = Coordinator(driver.coordinator.settings)
    snapshot.restore(old, state)
    assert old.membership.sits_out == {}
