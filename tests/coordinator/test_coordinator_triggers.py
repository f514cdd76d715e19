"""Each trigger by transcript: events, and the actions expected of them. `conftest.py` defines the words."""

import pytest

# Sync.


def test_sync_starts_when_all_have_joined_with_tasks_in_ascending_order(drive):
    driver = drive("sync", clients=3)
    assert driver.join(2) == ["set lease 1000"]
    assert driver.join(0) == []
    assert driver.join(1) == ["evaluate v0", "task 0 #1 v0 n0", "task 1 #2 v0 n0", "task 2 #3 v0 n0"]


def test_sync_closes_when_every_participant_has_answered_in_order_of_arrival(drive):
    driver = drive("sync", clients=3)
    driver.start()
    assert driver.update(2) == ["ack 2 #3 accepted"]
    assert driver.update(0) == ["ack 0 #1 accepted"]
    assert driver.update(1) == ["ack 1 #2 accepted", "round v0: 2+0 0+0 1+0"]
    # Task ids are number * clients + client id + 1: 1 * 3 + 0 + 1 = 4 for the second task of client 0.
    assert driver.applied() == ["forget v0", "task 0 #4 v1 n1", "task 1 #5 v1 n1", "task 2 #6 v1 n1"]


def test_sync_does_not_wait_for_a_participant_that_left_was_refused_or_failed(drive):
    driver = drive("sync", clients=4)
    driver.start()
    assert driver.leave(0) == []
    assert driver.refuse(1) == []
    assert driver.fail(2) == []
    assert driver.updates(3) == ["round v0: 3+0"]
    assert driver.applied() == ["forget v0", "task 1 #6 v1 n1", "task 2 #7 v1 n1", "task 3 #8 v1 n1"]


@pytest.mark.parametrize("trigger", [{"trigger": "sync"}, {"trigger": "k-sync", "k": 1}])
def test_a_round_of_failures_and_refusals_is_retried_after_a_pause(drive, trigger):
    driver = drive(**trigger, clients=2)
    driver.start()
    assert driver.refuse(0) == []
    assert driver.at(3.0).fail(1) == ["set retry 8"]
    # No update was aggregated: the version is the same.
    assert driver.at(8.0).fire("retry") == ["task 0 #3 v0 n1", "task 1 #4 v0 n1"]
    assert driver.refuse(1) == []
    assert driver.at(9.0).refuse(0) == ["set retry 14"]
    assert driver.at(14.0).fire("retry") == ["task 0 #5 v0 n2", "task 1 #6 v0 n2"]
    assert driver.refuse(1) == []
    assert driver.updates(0) == ["round v0: 0+0"]


def test_a_round_stalls_when_its_last_busy_client_leaves_after_failures(drive):
    driver = drive("sync", clients=3)
    driver.start()
    driver.fail(0)
    assert driver.leave(1) == []
    assert driver.at(2.0).leave(2) == ["set retry 7"]
    assert driver.at(7.0).fire("retry") == ["task 0 #4 v0 n1"]


def test_a_stalled_round_without_clients_is_applied_empty(drive):
    driver = drive("sync", clients=1)
    driver.start()
    driver.fail(0)
    assert driver.leave(0) == ["round v0:", "cancel retry"]
    assert driver.applied() == ["forget v0"]


def test_a_client_that_joins_a_stalled_round_takes_part_in_its_retry(drive):
    driver = drive("sync", clients=2, min_clients=1)
    driver.join(0)
    assert driver.fail(0) == ["set retry 5"]
    assert driver.join(1) == []
    assert driver.at(5.0).fire("retry") == ["task 0 #3 v0 n1", "task 1 #2 v0 n0"]


def test_a_round_whose_participants_left_is_applied_empty_and_others_are_drawn(drive):
    driver = drive("sync", clients=3, size=1)
    driver.start()
    (drawn,) = [client.client_id for client in driver.coordinator.membership.clients if client.tasks.open_id]
    assert driver.leave(drawn) == ["round v0:"]
    transcript = driver.applied()
    assert transcript[0] == "forget v0"
    assert len(transcript) == 2


def test_a_stalled_round_draws_again_so_that_one_failing_client_does_not_block_the_others(drive):
    driver = drive("sync", clients=3, size=1)
    driver.start()
    refused = set()
    for _ in range(20):
        (drawn,) = [client.client_id for client in driver.coordinator.membership.clients if client.tasks.open_id]
        refused.add(drawn)
        driver.refuse(drawn)
        driver.fire("retry")
    # The draws depend on the round; a constant draw would select one client only.
    assert refused == {0, 1, 2}
    assert driver.coordinator.version == 0


def test_a_client_that_joins_during_a_sync_round_waits_for_the_next(drive):
    driver = drive("sync", clients=3, min_clients=2)
    driver.join(0, 1)
    assert driver.join(2) == []
    assert driver.updates(0, 1) == ["round v0: 0+0 1+0"]
    assert driver.applied() == ["forget v0", "task 0 #4 v1 n1", "task 1 #5 v1 n1", "task 2 #3 v1 n0"]


def test_after_a_sync_round_that_all_clients_left_the_next_one_waits_for_a_client(drive):
    driver = drive("sync", clients=2)
    driver.start()
    driver.leave(0)
    assert driver.leave(1) == ["round v0:"]
    assert driver.applied() == ["forget v0"]
    assert driver.at(7.0).join(1) == ["task 1 #4 v1 n1"]
    assert driver.coordinator.round_started_s == 7.0


def test_an_update_of_a_sync_client_that_has_left_still_counts(drive):
    driver = drive("sync", clients=2)
    driver.start()
    driver.updates(0)
    driver.leave(0)
    assert driver.updates(1) == ["round v0: 0+0 1+0"]
    assert driver.applied() == ["forget v0", "task 1 #4 v1 n1"]


# K-sync.


def test_k_sync_closes_with_the_first_k_and_withdraws_the_other_tasks(drive):
    driver = drive("k-sync", clients=3, k=2)
    driver.start()
    assert driver.updates(2, 0) == ["round v0: 2+0 0+0"]
    assert driver.update(1, task_id=2) == ["ack 1 #2 rejected expired-task", "discard 3"]
    assert driver.applied() == ["forget v0", "task 0 #4 v1 n1", "task 1 #5 v1 n1", "task 2 #6 v1 n1"]


def test_k_sync_closes_with_fewer_than_k_when_no_task_is_open(drive):
    driver = drive("k-sync", clients=3, k=2)
    driver.start()
    assert driver.updates(1) == []
    assert driver.leave(0) == []
    assert driver.leave(2) == ["round v0: 1+0"]


# K-async.


def test_k_async_closes_with_k_and_sends_the_new_version_to_their_senders_in_order_of_arrival(drive):
    driver = drive("k-async", clients=3, k=2)
    driver.start()
    assert driver.update(2) == ["ack 2 #3 accepted"]
    assert driver.update(0) == ["ack 0 #1 accepted", "round v0: 2+0 0+0"]
    # Client 1 keeps working on version 0, which is therefore not forgotten.
    assert driver.applied() == ["task 2 #6 v1 n1", "task 0 #4 v1 n1"]


def test_k_async_staleness_is_the_aggregated_version_minus_the_base_version(drive):
    driver = drive("k-async", clients=3, k=2)
    driver.start()
    driver.updates(0, 2)
    driver.applied()
    driver.updates(0, 2)
    assert driver.applied() == ["forget v1", "task 0 #7 v2 n2", "task 2 #9 v2 n2"]
    # Client 1 still has its task of version 0: 2 - 0 = 2. Client 2 has one of version 2: 2 - 2 = 0.
    assert driver.updates(1, 2) == ["round v2: 1+2 2+0"]
    # Client 0 works on version 2, which stays; no client needs version 0 any more.
    assert driver.applied() == ["forget v0", "task 1 #5 v3 n1", "task 2 #12 v3 n3"]


def test_an_update_that_arrives_during_aggregation_belongs_to_the_next_round(drive):
    driver = drive("k-async", clients=4, k=2)
    driver.start()
    assert driver.updates(0, 1) == ["round v0: 0+0 1+0"]
    assert driver.updates(2, 3) == []
    # Their staleness counts from the version that their round is aggregated into: 1 - 0 = 1.
    assert driver.applied() == ["task 0 #5 v1 n1", "task 1 #6 v1 n1", "round v1: 2+1 3+1"]
    assert driver.applied() == ["forget v0", "task 2 #7 v2 n1", "task 3 #8 v2 n1"]


def test_a_round_takes_at_most_k_of_the_pending_updates(drive):
    driver = drive("k-async", clients=5, k=2)
    driver.start()
    driver.updates(0, 1, 2, 3, 4)
    assert driver.applied()[-1] == "round v1: 2+1 3+1"
    assert [update.client_id for update in driver.coordinator.pending] == [4]


def test_k_async_closes_with_fewer_than_k_when_no_task_is_open(drive):
    driver = drive("k-async", clients=3, k=3)
    driver.start()
    assert driver.updates(0) == []
    assert driver.refuse(1) == []
    assert driver.leave(2) == ["task 1 #5 v0 n1"]
    assert driver.leave(1) == ["round v0: 0+0"]
    assert driver.applied() == ["forget v0", "task 0 #4 v1 n1"]


def test_a_client_that_joins_a_k_async_run_late_gets_a_task_at_once(drive):
    driver = drive("k-async", clients=3, k=2, min_clients=2)
    driver.join(0, 1)
    assert driver.join(2) == ["task 2 #3 v0 n0"]


def test_a_refused_client_gets_its_next_task_when_the_round_is_applied_after_the_senders(drive):
    driver = drive("k-async", clients=4, k=2)
    driver.start()
    assert driver.refuse(0) == []
    assert driver.fail(1) == []
    assert driver.updates(3, 2) == ["round v0: 3+0 2+0"]
    assert driver.applied() == ["forget v0", "task 3 #8 v1 n1", "task 2 #7 v1 n1", "task 0 #5 v1 n1", "task 1 #6 v1 n1"]


def test_when_all_clients_were_refused_new_tasks_follow_after_a_pause(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    assert driver.refuse(0) == []
    assert driver.at(3.0).refuse(1) == ["set retry 8"]
    assert driver.at(8.0).fire("retry") == ["task 0 #3 v0 n1", "task 1 #4 v0 n1"]


def test_the_pause_ends_when_a_client_joins(drive):
    driver = drive("k-async", clients=2, k=1, min_clients=1)
    driver.join(0)
    assert driver.refuse(0) == ["set retry 5"]
    assert driver.join(1) == ["task 0 #3 v0 n1", "task 1 #2 v0 n0", "cancel retry"]


def test_the_pause_ends_when_the_last_client_leaves(drive):
    driver = drive("async", clients=1)
    driver.start()
    driver.refuse(0)
    assert driver.leave(0) == ["cancel retry"]


# Async.


def test_async_applies_every_update_by_itself(drive):
    driver = drive("async", clients=2)
    driver.start()
    assert driver.updates(1) == ["round v0: 1+0"]
    assert driver.updates(0) == []
    assert driver.applied() == ["task 1 #4 v1 n1", "round v1: 0+1"]
    assert driver.applied() == ["forget v0", "task 0 #3 v2 n1"]


# Buffered.


def test_buffered_assigns_the_sender_a_new_task_at_once_on_the_current_version(drive):
    driver = drive("buffered", clients=2, k=2)
    driver.start()
    assert driver.update(0) == ["ack 0 #1 accepted", "task 0 #3 v0 n1"]
    assert driver.update(0) == ["ack 0 #3 accepted", "task 0 #5 v0 n2", "round v0: 0+0 0+0"]
    assert driver.applied() == []
    assert driver.updates(0, 1) == ["task 0 #7 v1 n3", "task 1 #4 v1 n1", "round v1: 0+1 1+1"]
    assert driver.applied() == ["forget v0"]


def test_a_buffered_run_keeps_its_bound_when_all_clients_answer_during_aggregation(drive):
    driver = drive("buffered", clients=4, k=2)
    driver.start()
    most = 0
    for _ in range(8):
        # Every client with a task answers, until none gets another.
        while working := [c.client_id for c in driver.coordinator.membership.clients if c.tasks.open_id]:
            driver.updates(*working)
        unaggregated = driver.coordinator.accepted - driver.coordinator.aggregated
        # 2 in aggregation and 1 pending, then no more tasks; 4 clients have one: 2 * 2 - 1 + 4 = 7.
        assert unaggregated <= 7
        most = max(most, unaggregated)
        driver.applied()
    assert most == 7
    assert driver.coordinator.settings.unaggregated_max == 7


def test_buffered_assigns_tasks_while_less_than_a_round_is_pending(drive):
    driver = drive("buffered", clients=4, k=3)
    driver.start()
    driver.updates(0, 0, 0)
    driver.updates(1, 1, 1)
    assert len(driver.coordinator.pending) == 3
    driver.updates(2, 3)
    # The next round takes 3 of the 5 pending, so 2 stay pending.
    assert driver.applied() == ["task 1 #14 v1 n3", "task 2 #7 v1 n1", "task 3 #8 v1 n1", "round v1: 1+1 1+1 1+1"]


def test_buffered_delays_tasks_while_a_whole_round_is_pending(drive):
    driver = drive("buffered", clients=3, k=2)
    driver.start()
    driver.updates(0, 0)
    assert driver.updates(0) == ["task 0 #10 v0 n3"]
    assert driver.updates(0, 1, 2) == []
    # In aggregation 2, pending 4: at most 2 * k - 1 + clients = 6 updates are unaggregated.
    assert len(driver.coordinator.pending) == 4
    # A whole round is pending behind the next one, too, and none behind the one after.
    assert driver.applied() == ["round v1: 0+1 0+1"]
    # No client had a task of version 1.
    assert driver.applied() == [
        "forget v1",
        "task 0 #13 v2 n4",
        "task 1 #5 v2 n1",
        "task 2 #6 v2 n1",
        "round v2: 1+2 2+2",
    ]


def test_buffered_closes_with_fewer_than_k_when_the_last_client_has_left(drive):
    driver = drive("buffered", clients=2, k=2)
    driver.start()
    driver.leave(1)
    driver.updates(0)
    assert driver.leave(0) == ["round v0: 0+0"]


# Deadline.


def test_a_deadline_round_closes_at_its_deadline_with_the_received_updates(drive):
    driver = drive("deadline", clients=3, wait_s=10.0)
    assert driver.at(100.0).start() == [
        "evaluate v0",
        "task 0 #1 v0 n0",
        "task 1 #2 v0 n0",
        "task 2 #3 v0 n0",
        "set deadline 110",
    ]
    assert driver.updates(2, 0) == []
    assert driver.at(110.0).fire("deadline") == ["round v0: 2+0 0+0"]
    # The straggler, client 1, keeps working; its update counts in the next round with staleness 1 - 0 = 1.
    assert driver.at(111.0).applied() == ["task 0 #4 v1 n1", "task 2 #6 v1 n1", "set deadline 121"]
    assert driver.updates(1) == []
    assert driver.at(121.0).fire("deadline") == ["round v1: 1+1"]
    assert driver.applied() == ["forget v0", "task 1 #5 v2 n1", "set deadline 131"]


def test_a_deadline_round_lasts_until_its_deadline_even_when_all_clients_have_answered(drive):
    driver = drive("deadline", clients=1, wait_s=10.0)
    driver.start()
    assert driver.updates(0) == []
    assert driver.at(10.0).fire("deadline") == ["round v0: 0+0"]


def test_a_deadline_round_without_updates_closes_with_the_first_update(drive):
    driver = drive("deadline", clients=2, wait_s=10.0)
    driver.start()
    assert driver.at(10.0).fire("deadline") == []
    assert driver.updates(1) == ["round v0: 1+0"]


def test_a_deadline_round_is_applied_empty_when_its_awaited_clients_have_left(drive):
    driver = drive("deadline", clients=3, wait_s=10.0, min_clients=2)
    driver.join(0, 1)
    assert driver.leave(0) == []
    assert driver.join(2) == []
    assert driver.leave(1) == []
    assert driver.at(10.0).fire("deadline") == ["round v0:"]
    assert driver.applied() == ["forget v0", "task 2 #3 v1 n0", "set deadline 20"]


def test_a_deadline_round_of_failures_is_retried_before_its_deadline(drive):
    driver = drive("deadline", clients=2, wait_s=10.0)
    driver.start()
    driver.fail(0)
    assert driver.at(1.0).refuse(1) == ["set retry 6"]
    assert driver.at(6.0).fire("retry") == ["task 0 #3 v0 n1", "task 1 #4 v0 n1"]
    assert driver.updates(0) == []
    assert driver.at(10.0).fire("deadline") == ["round v0: 0+0"]


def test_a_deadline_round_of_failures_is_not_applied_empty_at_its_deadline(drive):
    driver = drive("deadline", clients=1, wait_s=10.0)
    driver.start()
    assert driver.at(8.0).fail(0) == ["set retry 13"]
    assert driver.at(10.0).fire("deadline") == []
    assert driver.at(13.0).fire("retry") == ["task 0 #2 v0 n1"]
    assert driver.updates(0) == ["round v0: 0+0"]


def test_the_failure_of_the_last_straggler_stalls_a_deadline_round(drive):
    driver = drive("deadline", clients=2, wait_s=10.0)
    driver.start()
    driver.fail(0)
    assert driver.at(10.0).fire("deadline") == []
    assert driver.at(11.0).fail(1) == ["set retry 16"]


def test_a_client_that_joins_during_a_deadline_round_waits_for_the_next(drive):
    driver = drive("deadline", clients=2, wait_s=10.0, min_clients=1)
    driver.join(0)
    assert driver.join(1) == []
    driver.updates(0)
    driver.at(10.0).fire("deadline")
    assert driver.applied() == ["forget v0", "task 0 #3 v1 n1", "task 1 #2 v1 n0", "set deadline 20"]


def test_a_deadline_run_without_clients_waits_for_one_before_a_round_starts(drive):
    driver = drive("deadline", clients=1, wait_s=10.0)
    driver.start()
    driver.leave(0)
    assert driver.at(10.0).fire("deadline") == ["round v0:"]
    assert driver.applied() == ["forget v0"]
    assert driver.at(50.0).join(0) == ["task 0 #2 v1 n1", "set deadline 60"]


def test_the_update_of_a_client_that_left_is_in_the_next_deadline_round(drive):
    driver = drive("deadline", clients=2, wait_s=10.0)
    driver.start()
    driver.updates(0)
    driver.at(10.0).fire("deadline")
    driver.updates(1)
    driver.leave(0)
    driver.leave(1)
    assert driver.applied() == ["set deadline 20"]
    assert driver.at(20.0).fire("deadline") == ["round v1: 1+1"]
