"""What an update is told, and what that does to its task."""

import pytest


def test_an_update_whose_task_was_never_given_is_rejected_and_changes_nothing(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    # Task ids are number * 2 + client id + 1: client 0 was given 1, would be given 3 next, and never 2.
    for never_given in (3, 2, 5):
        told = driver.update(0, task_id=never_given)
        assert told == [f"ack 0 #{never_given} rejected unknown-task", f"discard {driver.handles}"]
    # Not remembered as a verdict: when the task is given, its update counts.
    assert driver.update(0) == ["ack 0 #1 accepted"]
    assert driver.updates(1) == ["round v0: 0+0 1+0"]
    driver.applied()
    assert driver.update(0, task_id=3) == ["ack 0 #3 accepted"]


@pytest.mark.parametrize("task_id", [0, -1, -2])
def test_a_task_id_below_one_was_never_given(drive, task_id):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    driver.update(1)
    # Also of a client that has no open task, whose number might be taken for it.
    for client_id in (0, 1):
        told = driver.update(client_id, task_id=task_id)[0]
        assert told == f"ack {client_id} #{task_id} rejected unknown-task"
        assert driver.fail(client_id, task_id=task_id) == []


def test_a_client_that_never_joined_was_given_no_task(drive):
    driver = drive("k-async", clients=2, k=1, min_clients=1)
    driver.join(0)
    assert driver.update(1, task_id=2) == ["ack 1 #2 rejected unknown-task", "discard 1"]


def test_a_repeated_update_gets_the_first_verdict_back_and_counts_once(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    driver.update(0)
    assert driver.update(0, task_id=1) == ["ack 0 #1 duplicate of accepted", "discard 2"]
    assert driver.updates(1) == ["round v0: 0+0 1+0"]
    driver.applied()
    assert driver.update(0, task_id=1) == ["ack 0 #1 duplicate of accepted", "discard 4"]
    assert driver.coordinator.updates_by_outcome == {"accepted": 2, "duplicate": 2, "rejected": 0}
    assert driver.coordinator.aggregated == 2


def test_a_repeated_rejected_update_gets_its_first_reason_back_even_if_the_copy_is_sound(drive):
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


def test_a_wrong_version_is_named_before_a_defect(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    assert driver.update(0, base_version=7, defect="non-finite")[0] == "ack 0 #1 rejected unknown-version"


def test_an_update_for_a_task_that_was_taken_back_is_rejected_and_its_repeat_a_duplicate(drive):
    driver = drive("k-sync", clients=2, k=1)
    driver.start()
    driver.updates(0)
    assert driver.update(1, task_id=2) == ["ack 1 #2 rejected expired-task", "discard 2"]
    assert driver.update(1, task_id=2) == ["ack 1 #2 duplicate of rejected expired-task", "discard 3"]


def test_an_update_for_a_task_that_failed_is_rejected_as_expired(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    driver.fail(0)
    assert driver.update(0, task_id=1)[0] == "ack 0 #1 rejected expired-task"


def test_a_failure_report_of_another_task_than_the_open_one_does_nothing(drive):
    driver = drive("k-async", clients=2, k=1)
    driver.start()
    driver.updates(0)
    driver.applied()
    assert driver.fail(0, task_id=1) == []
    assert driver.update(0) == ["ack 0 #3 accepted", "round v1: 0+0"]


def test_the_last_sixteen_verdicts_are_remembered_and_older_tasks_have_expired(drive):
    driver = drive("async", clients=1)
    driver.start()
    for _ in range(17):
        driver.update(0)
        driver.applied()
    # Given so far: tasks 1 to 18, of which 18 is open. The last sixteen that were judged are 2 to 17.
    assert driver.update(0, task_id=2)[0] == "ack 0 #2 duplicate of accepted"
    assert driver.update(0, task_id=1)[0] == "ack 0 #1 rejected expired-task"
    assert driver.update(0, task_id=1)[0] == "ack 0 #1 rejected expired-task"
    assert driver.coordinator.aggregated == 17


def test_tasks_that_end_without_an_update_push_no_verdict_out(drive):
    driver = drive("async", clients=1)
    driver.start()
    driver.update(0)
    for number in range(17):
        driver.applied()
        driver.decline(0, task_id=number + 2)
    assert driver.update(0, task_id=1)[0] == "ack 0 #1 duplicate of accepted"


def test_an_update_without_a_defect_must_be_staged(drive):
    driver = drive("k-async", clients=1, k=1)
    driver.start()
    with pytest.raises(AssertionError, match="staged under a handle"):
        driver.update(0, handle=-1)
