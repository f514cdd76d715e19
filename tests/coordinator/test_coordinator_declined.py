"""Tasks that clients decline, by transcript. `conftest.py` defines the words."""

import itertools

import pytest


def clients_of(words: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in words if line.startswith("task")]


LOOPS = [("k-async", {"k": 2}), ("async", {}), ("buffered", {"k": 2})]
ROUNDS = [("sync", {}), ("k-sync", {"k": 1})]


# The effect on the client.


def test_a_client_that_declines_gets_no_task_before_the_next_version(drive):
    driver = drive("sync", clients=2)
    driver.start()
    assert driver.decline(0) == []
    assert driver.updates(1) == ["round v0: 1+0"]
    assert driver.applied() == ["forget v0", "task 0 #3 v1 n1", "task 1 #4 v1 n1"]


def test_a_declined_task_is_no_failure(drive):
    driver = drive("k-async", clients=3, k=1)
    driver.start()
    driver.decline(0)
    driver.fail(2)
    coordinator = driver.coordinator
    assert (coordinator.declined, coordinator.failed, coordinator.consecutive_failures) == (1, 1, 1)
    assert coordinator.clients_by_state["unavailable"] == 1
    assert coordinator.is_active(0)
    assert coordinator.membership.busy == 1


def test_an_update_for_a_declined_task_is_rejected_as_expired(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    driver.decline(0)
    assert driver.update(0, task_id=1) == ["ack 0 #1 rejected expired-task", "discard 1"]


@pytest.mark.parametrize("task_id", [1, 2, 7])
def test_a_task_that_is_not_open_cannot_be_declined(drive, task_id):
    driver = drive("k-async", clients=2, k=1)
    driver.start()
    driver.updates(0)
    driver.applied()
    # The open task of client 0 is its second, #3: 1 was answered, 2 is the other client's, 7 was never assigned.
    assert driver.decline(0, task_id=task_id) == []
    assert driver.coordinator.declined == 0
    assert driver.updates(0) == ["round v1: 0+0"]


def test_neither_a_heartbeat_nor_a_hello_makes_a_client_available(drive):
    driver = drive("k-async", clients=2, k=1)
    driver.start()
    driver.decline(0)
    assert driver.heartbeat(0) == []
    assert driver.join(0) == []
    assert driver.updates(1) == ["round v0: 1+0"]
    # The sender is first, as always.
    assert driver.applied() == ["forget v0", "task 1 #4 v1 n1", "task 0 #3 v1 n1"]


def test_a_client_that_declined_can_leave_and_be_lost(drive):
    driver = drive("sync", clients=3, lease_s=10.0)
    driver.start()
    driver.at(1.0).decline(0)
    driver.decline(1)
    assert driver.leave(0) == []
    driver.at(4.0).heartbeat(2)
    assert driver.at(10.0).fire("lease") == ["set lease 11"]
    assert driver.at(11.0).fire("lease") == ["set lease 14"]
    states = driver.coordinator.clients_by_state
    assert (states["left"], states["lost"], states["unavailable"]) == (1, 1, 0)


def test_a_client_that_declines_releases_the_version_that_only_it_used(drive):
    driver = drive("k-async", clients=2, k=1)
    driver.start()
    driver.updates(1)
    driver.applied()
    assert driver.decline(0) == ["forget v0"]


def test_after_the_end_a_task_can_be_declined_without_effect(drive):
    driver = drive("sync", clients=1)
    driver.start()
    driver.stop()
    assert driver.decline(0) == []


# A round without updates.


@pytest.mark.parametrize(("trigger", "settings"), [*ROUNDS, *LOOPS])
def test_a_round_that_all_clients_decline_is_applied_empty(drive, trigger, settings):
    driver = drive(trigger, clients=2, **settings)
    driver.start()
    assert driver.decline(1) == []
    assert driver.decline(0) == ["round v0:"]
    assert driver.applied() == ["forget v0", "task 0 #3 v1 n1", "task 1 #4 v1 n1"]
    assert driver.coordinator.clients_by_state["unavailable"] == 0


def test_a_deadline_round_that_all_clients_decline_lasts_until_its_deadline(drive):
    driver = drive("deadline", clients=2, wait_s=10.0)
    driver.start()
    driver.decline(0)
    assert driver.decline(1) == []
    assert driver.at(10.0).fire("deadline") == ["round v0:"]


@pytest.mark.parametrize(("trigger", "settings"), [("sync", {}), ("k-sync", {"k": 3}), ("k-async", {"k": 3})])
def test_a_round_closes_with_the_received_updates_when_the_others_decline(drive, trigger, settings):
    driver = drive(trigger, clients=3, **settings)
    driver.start()
    driver.decline(2)
    assert driver.updates(0) == []
    assert driver.decline(1) == ["round v0: 0+0"]


def test_a_pending_update_makes_a_round_when_its_sender_declines_the_next_task(drive):
    driver = drive("buffered", clients=2, k=2)
    driver.start()
    assert driver.decline(1) == []
    assert driver.updates(0) == ["task 0 #3 v0 n1"]
    assert driver.decline(0) == ["round v0: 0+0"]


def test_a_cycle_does_not_wait_for_a_client_that_declines(drive):
    driver = drive("k-async", clients=2, k=1, once_a_cycle=True)
    driver.start()
    driver.updates(0)
    driver.applied()
    assert driver.updates(0) == []
    assert driver.decline(1) == ["forget v0", "round v1: 0+0"]


# With failures.


@pytest.mark.parametrize(("trigger", "settings"), [("sync", {}), ("k-sync", {"k": 2}), *LOOPS])
def test_a_round_of_failures_and_a_declined_task_is_applied_after_the_pause(drive, trigger, settings):
    driver = drive(trigger, clients=2, **settings)
    driver.start()
    assert driver.decline(1) == []
    # Not at once: a client that fails immediately would make versions as fast as messages travel.
    assert driver.fail(0) == ["set retry 5"]
    assert driver.at(5.0).fire("retry") == ["round v0:"]
    assert driver.applied() == ["forget v0", "task 0 #3 v1 n1", "task 1 #4 v1 n1"]


def test_a_deadline_round_before_its_deadline_is_retried_with_clients_that_did_not_decline(drive):
    driver = drive("deadline", clients=2, wait_s=10.0)
    driver.start()
    driver.fail(0)
    assert driver.decline(1) == ["set retry 5"]
    assert driver.at(5.0).fire("retry") == ["task 0 #3 v0 n1"]
    assert driver.decline(0) == []
    assert driver.at(10.0).fire("deadline") == ["round v0:"]


def test_the_retry_of_a_round_draws_from_the_clients_that_did_not_decline(drive):
    driver = drive("deadline", clients=3, wait_s=10.0, size=1, selector="availability", availability=(0.1, 0.5, 0.9))
    assert clients_of(driver.start()) == [0]
    assert clients_of(driver.decline(0)) == [1]
    assert driver.fail(1) == ["set retry 5"]
    assert clients_of(driver.at(5.0).fire("retry")) == [1]


def test_failures_of_the_last_round_do_not_delay_one_that_all_clients_decline(drive):
    driver = drive("sync", clients=2)
    driver.start()
    driver.fail(0)
    driver.updates(1)
    driver.applied()
    driver.decline(0)
    assert driver.decline(1) == ["round v1:"]


def test_the_pause_ends_when_a_client_joins_a_loop(drive):
    driver = drive("k-async", clients=3, k=1, min_clients=2)
    driver.join(0, 1)
    driver.decline(1)
    assert driver.fail(0) == ["set retry 5"]
    assert driver.join(2) == ["task 0 #4 v0 n1", "task 2 #3 v0 n0", "cancel retry"]


# The place of the client.


def test_in_a_loop_a_declined_place_goes_to_a_waiting_client(drive):
    driver = drive("k-async", clients=2, k=1, size=1)
    (asked,) = clients_of(driver.start())
    assert clients_of(driver.decline(asked)) == [1 - asked]


def test_in_a_loop_a_declined_place_can_go_to_a_client_that_failed(drive):
    driver = drive("k-async", clients=2, k=1)
    driver.start()
    assert driver.fail(0) == []
    assert driver.decline(1) == ["task 0 #3 v0 n1"]
    assert driver.fail(0) == ["set retry 5"]


@pytest.mark.parametrize("trigger", ["sync", "deadline"])
def test_in_a_round_a_declined_place_goes_to_each_other_client_in_turn(drive, trigger):
    driver = drive(trigger, clients=4, size=1, wait_s=10.0 if trigger == "deadline" else None)
    (asked,) = clients_of(driver.start())
    all_asked = [asked]
    for _ in range(3):
        (asked,) = clients_of(driver.decline(asked))
        all_asked.append(asked)
    assert sorted(all_asked) == [0, 1, 2, 3]
    closed = driver.decline(asked)
    assert closed == ([] if trigger == "deadline" else ["round v0:"])


def test_a_declined_place_does_not_go_to_a_client_that_failed_in_this_round(drive):
    driver = drive("sync", clients=3, size=2)
    failing, declining = clients_of(driver.start())
    driver.fail(failing)
    (third,) = clients_of(driver.decline(declining))
    assert third not in (failing, declining)
    assert driver.decline(third) == ["set retry 5"]


def test_a_selector_without_a_size_has_asked_all_clients(drive):
    driver = drive("sync", clients=3, min_clients=2)
    driver.join(0, 1)
    assert driver.join(2) == []
    assert driver.decline(0) == []
    assert driver.updates(1) == ["round v0: 1+0"]


def test_no_client_is_asked_during_aggregation(drive):
    driver = drive("deadline", clients=3, size=2, wait_s=10.0)
    quick, late = clients_of(driver.start())
    driver.updates(quick)
    assert driver.at(10.0).fire("deadline") == [f"round v0: {quick}+0"]
    assert driver.decline(late) == []


def test_participants_are_a_uniform_draw_from_the_available_clients(drive):
    driver = drive("sync", clients=4, size=2, rounds=1000)
    transcript = driver.start()
    pairs = []
    for _ in range(300):
        asked = clients_of(transcript)
        if 3 in asked:  # never available: S_t is drawn from A_t = {0, 1, 2}
            asked = [client_id for client_id in asked if client_id != 3] + clients_of(driver.decline(3))
        pairs.append(tuple(sorted(asked)))
        driver.updates(*asked)
        transcript = driver.applied()
    # Three pairs, 100 each on average, with standard deviation sqrt(300 * 1/3 * 2/3) = 8.2.
    for pair in itertools.combinations(range(3), 2):
        assert abs(pairs.count(pair) - 100) < 41
