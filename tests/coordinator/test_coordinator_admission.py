"""The verdict on an update, and its effect on the task."""

import pytest

from unstale.coordinator import snapshot
from unstale.coordinator.machine import Coordinator


def test_an_update_of_an_unassigned_task_is_rejected_without_effect(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    # Task ids are number * 2 + client id + 1: client 0 has 1, its next is 3, and it never gets 2.
    for never_given in (3, 2, 5):
        transcript = driver.update(0, task_id=never_given)
        assert transcript == [f"ack 0 #{never_given} rejected unknown-task", f"discard {driver.handles}"]
    # This verdict is not stored: once the task is assigned, its update counts.
    assert driver.update(0) == ["ack 0 #1 accepted"]
    assert driver.updates(1) == ["round v0: 0+0 1+0"]
    driver.applied()
    assert driver.update(0, task_id=3) == ["ack 0 #3 accepted"]


@pytest.mark.parametrize("task_id", [0, -1, -2])
def test_a_task_id_below_one_is_rejected_as_unassigned(drive, task_id):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    driver.update(1)
    # The same for a client without an open task, which has no task number to compare.
    for client_id in (0, 1):
        transcript = driver.update(client_id, task_id=task_id)[0]
        assert transcript == f"ack {client_id} #{task_id} rejected unknown-task"
        assert driver.fail(client_id, task_id=task_id) == []


def test_an_update_of_a_client_that_never_joined_is_rejected(drive):
    driver = drive("k-async", clients=2, k=1, min_clients=1)
    driver.join(0)
    assert driver.update(1, task_id=2) == ["ack 1 #2 rejected unknown-task", "discard 1"]


def test_a_repeated_update_gets_the_first_verdict_and_counts_once(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    driver.update(0)
    assert driver.update(0, task_id=1) == ["ack 0 #1 duplicate of accepted", "discard 2"]
    assert driver.updates(1) == ["round v0: 0+0 1+0"]
    driver.applied()
    assert driver.update(0, task_id=1) == ["ack 0 #1 duplicate of accepted", "discard 4"]
    assert driver.coordinator.updates_by_outcome == {"accepted": 2, "duplicate": 2, "rejected": 0}
    assert driver.coordinator.aggregated == 2


def test_a_repeated_rejected_update_gets_its_first_reason_even_if_the_copy_is_valid(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    assert driver.update(0, defect="non-finite") == ["ack 0 #1 rejected non-finite", "discard 1"]
    assert driver.update(0, task_id=1) == ["ack 0 #1 duplicate of rejected non-finite", "discard 2"]


def test_nothing_is_discarded_when_nothing_was_staged(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    assert driver.update(0, handle=-1, defect="wrong-size") == ["ack 0 #1 rejected wrong-size"]
    assert driver.update(0, task_id=1, handle=-1) == ["ack 0 #1 duplicate of rejected wrong-size"]


def test_an_update_from_another_version_than_its_task_is_rejected_and_closes_the_task(drive):
    driver = drive("sync", clients=1)
    driver.start()
    assert driver.update(0, base_version=1) == ["ack 0 #1 rejected unknown-version", "discard 1", "set retry 5"]


def test_an_update_from_an_older_version_than_its_task_is_rejected(drive):
    driver = drive("async", clients=1)
    driver.start()
    driver.updates(0)
    driver.applied()
    assert driver.update(0, base_version=0)[0] == "ack 0 #2 rejected unknown-version"


def test_a_wrong_version_takes_precedence_over_a_defect(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    assert driver.update(0, base_version=7, defect="non-finite")[0] == "ack 0 #1 rejected unknown-version"


def test_an_update_of_a_withdrawn_task_is_rejected_and_its_repeat_is_a_duplicate(drive):
    driver = drive("k-sync", clients=2, k=1)
    driver.start()
    driver.updates(0)
    assert driver.update(1, task_id=2) == ["ack 1 #2 rejected expired-task", "discard 2"]
    assert driver.update(1, task_id=2) == ["ack 1 #2 duplicate of rejected expired-task", "discard 3"]


def test_an_update_of_a_failed_task_is_rejected_as_expired(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    driver.fail(0)
    assert driver.update(0, task_id=1)[0] == "ack 0 #1 rejected expired-task"


def test_a_failure_report_of_a_task_that_is_not_open_has_no_effect(drive):
    driver = drive("k-async", clients=2, k=1)
    driver.start()
    driver.updates(0)
    driver.applied()
    assert driver.fail(0, task_id=1) == []
    assert driver.update(0) == ["ack 0 #3 accepted", "round v1: 0+0"]


def test_the_last_sixteen_verdicts_are_stored_and_older_tasks_have_expired(drive):
    driver = drive("async", clients=1)
    driver.start()
    for _ in range(17):
        driver.update(0)
        driver.applied()
    # Assigned so far: tasks 1 to 18, of which 18 is open. The last sixteen verdicts are on 2 to 17.
    assert driver.update(0, task_id=2)[0] == "ack 0 #2 duplicate of accepted"
    assert driver.update(0, task_id=1)[0] == "ack 0 #1 rejected expired-task"
    assert driver.update(0, task_id=1)[0] == "ack 0 #1 rejected expired-task"
    assert driver.coordinator.aggregated == 17


def test_tasks_that_end_without_an_update_evict_no_verdict(drive):
    driver = drive("async", clients=1)
    driver.start()
    driver.update(0)
    for number in range(17):
        driver.applied()
        driver.decline(0, task_id=number + 2)
    assert driver.update(0, task_id=1)[0] == "ack 0 #1 duplicate of accepted"


def test_the_newest_accepted_task_of_a_client_is_known_whatever_its_later_tasks_become(drive):
    driver = drive("async", clients=2)
    driver.start()  # tasks 1 and 2; those of client 0 are 1, 3, 5 and so on
    assert driver.coordinator.accepted_task(0) == 0
    driver.update(0)
    driver.applied()
    assert driver.coordinator.accepted_task(0) == 1
    driver.decline(0, task_id=3)
    driver.update(1)
    driver.applied()
    assert driver.update(0, task_id=5, defect="zero-update")[0].startswith("ack 0 #5 rejected")
    assert driver.update(0, task_id=3)[0] == "ack 0 #3 rejected expired-task"
    resumed = Coordinator(driver.coordinator.settings)
    snapshot.restore(resumed, snapshot.taken(driver.coordinator))
    for coordinator in (driver.coordinator, resumed):
        assert [coordinator.accepted_task(client) for client in range(2)] == [1, 2]


def test_an_update_without_a_defect_must_be_staged(drive):
    driver = drive("k-async", clients=1, k=1)
    driver.start()
    with pytest.raises(AssertionError, match="staged under a handle"):
        driver.update(0, handle=-1)
