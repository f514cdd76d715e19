"""Tasks that clients do not answer in time, by transcript. `conftest.py` defines the words."""

import pytest

from unstale.coordinator import events, snapshot
from unstale.coordinator.machine import Coordinator


def expire(driver, client_id):
    """The open task of a client expires."""
    task_id = driver.coordinator.membership.clients[client_id].tasks.open_id
    return driver.handle(events.TaskExpired(client_id=client_id, task_id=task_id, at_s=driver.now_s))


def test_a_round_of_all_clients_continues_without_a_client_that_does_not_answer(drive):
    driver = drive("sync", clients=2)
    driver.start()
    assert driver.updates(1) == []
    assert expire(driver, 0) == ["round v0: 1+0"]
    assert driver.coordinator.failed == 1
    assert driver.coordinator.is_active(0)


def test_a_client_that_does_not_answer_pauses_one_round_then_seven_until_an_update_resets_it(drive):
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


def test_expired_tasks_are_not_divergence(drive):
    driver = drive("async", clients=1)
    driver.start()
    expire(driver, 0)
    assert driver.coordinator.consecutive_failures == 0


@pytest.mark.parametrize("trigger", ["sync", "async"])
def test_clients_that_all_sit_out_get_tasks_after_a_pause_without_an_empty_version(drive, trigger):
    driver = drive(trigger, clients=2)
    driver.start()
    assert expire(driver, 0) == []
    (retry,) = expire(driver, 1)
    assert retry.startswith("set retry")
    driver.at(driver.coordinator.timers["retry"])
    transcript = driver.handle(events.TimerFired(timer="retry", at_s=driver.now_s))
    assert [words for words in transcript if words.startswith("task")] == ["task 0 #3 v0 n1", "task 1 #4 v0 n1"]
    assert driver.coordinator.version == 0


def test_leaving_and_rejoining_ends_no_pause(drive):
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


def test_a_snapshot_stores_the_clients_that_sit_out_and_older_ones_have_none(drive):
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
