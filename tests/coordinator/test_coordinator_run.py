"""The run as a whole: its start, its end, evaluations, and misuse by the shell."""

import math

import pytest

from unstale.coordinator import events
from unstale.coordinator.phase import Phase


def test_versions_are_evaluated_at_the_start_periodically_and_at_the_end(drive):
    driver = drive("async", clients=1, rounds=5, evaluate_every=2)
    transcript = driver.start()
    for _ in range(5):
        transcript += driver.updates(0) + driver.applied()
    assert [words for words in transcript if words.startswith("evaluate")] == [
        "evaluate v0", "evaluate v2", "evaluate v4", "evaluate v5"
    ]  # fmt: skip


def test_a_run_finishes_after_its_rounds(drive):
    driver = drive("k-async", clients=3, k=1, rounds=1)
    driver.start()
    driver.updates(0)
    assert driver.applied() == ["evaluate v1", "cancel lease", "finish v1 finished"]


def test_the_order_of_actions_when_a_round_is_applied(drive):
    driver = drive("k-async", clients=2, k=1, evaluate_every=1)
    driver.start()
    driver.updates(0, 1)
    driver.applied()
    assert driver.applied() == ["forget v0", "evaluate v2", "task 1 #4 v2 n1"]


def test_no_round_opens_after_the_end_although_enough_updates_are_pending(drive):
    driver = drive("async", clients=2, rounds=1)
    driver.start()
    driver.updates(0, 1)
    assert driver.applied() == ["evaluate v1", "cancel lease", "finish v1 finished"]
    assert (driver.coordinator.aggregated, len(driver.coordinator.pending)) == (1, 1)


def test_the_operator_can_end_a_run_at_any_time(drive):
    assert drive("async", clients=1).stop() == ["finish v0 shutdown"]
    driver = drive("deadline", clients=2, wait_s=10.0)
    driver.start()
    assert driver.stop() == ["cancel deadline", "cancel lease", "finish v0 shutdown"]
    assert driver.stop() == []


def test_after_the_end_updates_are_rejected_unless_they_repeat_one(drive):
    driver = drive("k-async", clients=3, k=2)
    driver.start()
    driver.updates(0)
    driver.stop()
    assert driver.update(0, task_id=1) == ["ack 0 #1 duplicate of accepted", "discard 2"]
    assert driver.update(1) == ["ack 1 #2 rejected run-finished", "discard 3"]
    assert driver.update(1, task_id=2) == ["ack 1 #2 duplicate of rejected run-finished", "discard 4"]
    assert driver.update(2, task_id=77) == ["ack 2 #77 rejected run-finished", "discard 5"]


def test_after_the_end_no_task_is_sent_and_no_timer_is_set(drive):
    driver = drive("k-async", clients=4, k=1, min_clients=3)
    driver.join(0, 1, 2)
    driver.updates(0)
    driver.stop()
    # The round in aggregation still counts; the version that it releases is not announced any more.
    assert driver.applied() == []
    assert (driver.coordinator.version, driver.coordinator.aggregated) == (1, 1)
    assert driver.join(3) == []
    assert driver.join(1) == []
    assert driver.heartbeat(2) == []
    assert driver.leave(0) == []
    assert driver.fail(2) == []


def test_the_start_of_a_round_is_when_the_last_one_was_applied(drive):
    driver = drive("k-async", clients=2, k=1)
    assert driver.coordinator.round_started_s is None
    driver.at(3.0).start()
    assert driver.coordinator.round_started_s == 3.0
    driver.at(4.0).updates(0)
    driver.at(6.0).applied()
    assert driver.coordinator.round_started_s == 6.0


# Fruitless tasks.


@pytest.mark.parametrize("trigger", [{"trigger": "k-async", "k": 1}, {"trigger": "sync"}])
def test_fruitless_tasks_in_a_row_are_counted_until_an_update_is_accepted(drive, trigger):
    driver = drive(**trigger, clients=2)
    driver.start()
    driver.fail(0)
    driver.refuse(1)
    driver.fire("retry")
    assert driver.coordinator.consecutive_failures == 2
    driver.update(0, base_version=7)
    assert driver.coordinator.consecutive_failures == 3
    driver.updates(1)
    assert driver.coordinator.consecutive_failures == 0


def test_withdrawn_tasks_and_updates_without_an_open_task_are_not_fruitless(drive):
    driver = drive("k-sync", clients=3, k=1, lease_s=10.0)
    driver.start()
    driver.join(0)  # task 1 was lost in transit
    driver.update(0, task_id=1)
    driver.update(0, task_id=999)
    driver.fail(0, task_id=1)
    driver.updates(0)
    # The tasks of clients 1 and 2 are withdrawn with the round.
    driver.update(1, task_id=2, defect="non-finite")
    driver.applied()
    driver.leave(1)
    driver.at(10.0).fire("lease")
    assert driver.coordinator.consecutive_failures == 0


def test_after_the_end_refused_updates_are_not_fruitless(drive):
    driver = drive("async", clients=2)
    driver.start()
    driver.fail(0)
    driver.stop()
    driver.update(1)
    assert driver.coordinator.consecutive_failures == 1


def test_tasks_that_clients_returned_are_counted_once_each(drive):
    driver = drive("k-async", clients=2, k=1)
    driver.start()
    driver.fail(0)
    driver.fail(0, task_id=1)
    driver.refuse(1)
    assert driver.coordinator.failed == 1
    assert driver.coordinator.updates_by_outcome == {"accepted": 0, "duplicate": 0, "rejected": 1}


# Misuse by the shell raises.


@pytest.mark.parametrize("client_id", [-1, 2])
def test_a_client_id_out_of_range_raises(drive, client_id):
    with pytest.raises(AssertionError, match="there is no client"):
        drive("async", clients=2).heartbeat(client_id)


@pytest.mark.parametrize("earlier_s", [0.999, math.nan])
def test_decreasing_time_raises(drive, earlier_s):
    driver = drive("async", clients=1).at(1.0)
    driver.start()
    with pytest.raises(AssertionError, match="time went back"):
        driver.at(earlier_s).heartbeat(0)


def test_a_version_that_was_not_requested_raises(drive):
    driver = drive("async", clients=1)
    driver.start()
    with pytest.raises(AssertionError, match="phase open does not allow RoundApplied"):
        driver.applied()
    driver.updates(0)
    with pytest.raises(AssertionError, match="version 2 was made out of 0"):
        driver.coordinator.handle(events.RoundApplied(version=2, at_s=0.0))


def test_a_timer_that_fires_without_being_set_raises(drive):
    with pytest.raises(AssertionError, match="timer 'retry' fired"):
        drive("async", clients=1).fire("retry")


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_target_that_is_reached_ends_the_run_in_any_phase_and_stays_reached_after_a_restart(drive, rounds):
    driver = drive("async", clients=1)
    if rounds:
        driver.start()
    finish = driver.handle(events.TargetReached(at_s=driver.now_s))[-1]
    assert finish == driver.handle(events.Resumed(at_s=driver.now_s))[-1]
    assert driver.coordinator.phase is Phase.FINISHED
    assert driver.handle(events.TargetReached(at_s=driver.now_s)) == []
