"""Joining, leaving, leases, and tasks in transit."""


def test_no_task_is_sent_before_min_clients_have_joined(drive):
    driver = drive("async", clients=4, min_clients=2)
    assert driver.join(3) == ["set lease 1000"]
    assert driver.join(3) == []
    assert driver.join(1) == ["evaluate v0", "task 1 #2 v0 n0", "task 3 #4 v0 n0"]


def test_a_client_that_left_before_the_start_does_not_count_as_joined(drive):
    driver = drive("async", clients=3, min_clients=2)
    driver.join(0)
    assert driver.leave(0) == []
    assert driver.join(1) == []
    assert driver.join(0) == ["evaluate v0", "task 0 #1 v0 n0", "task 1 #2 v0 n0"]


def test_states_are_counted(drive):
    driver = drive("k-async", clients=6, k=2, min_clients=5, lease_s=10.0)
    driver.join(0, 1, 2, 3, 4)
    driver.at(5.0).updates(0)
    driver.leave(2)
    driver.heartbeat(3)
    driver.refuse(1)
    assert driver.coordinator.clients_by_state["waiting"] == 1
    # Client 4 is lost, and its place goes to the waiting client.
    assert driver.at(10.0).fire("lease") == ["task 1 #8 v0 n1", "set lease 15"]
    assert driver.coordinator.clients_by_state == {
        "absent": 1, "waiting": 0, "working": 2, "contributed": 1, "unavailable": 0, "lost": 1, "left": 1
    }  # fmt: skip
    assert [driver.coordinator.is_active(client_id) for client_id in range(6)] == [
        True, True, False, True, False, False
    ]  # fmt: skip


# Rejoining.


def test_a_client_that_rejoins_with_its_task_keeps_it(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    assert driver.join(0, holding=(1,)) == []
    assert driver.update(0) == ["ack 0 #1 accepted"]


def test_a_client_that_rejoins_without_its_task_gets_a_new_one_at_once(drive):
    driver = drive("k-async", clients=2, k=1)
    driver.start()
    driver.updates(1)
    driver.applied()
    # The lost task was the last on version 0.
    assert driver.join(0) == ["forget v0", "task 0 #3 v1 n1"]
    assert driver.update(0, task_id=1, base_version=0)[0] == "ack 0 #1 rejected expired-task"
    assert driver.update(0) == ["ack 0 #3 accepted", "round v1: 0+0"]


def test_a_task_lost_in_transit_is_replaced_in_the_same_sync_round(drive):
    driver = drive("sync", clients=2)
    driver.start()
    assert driver.join(0) == ["task 0 #3 v0 n1"]
    driver.updates(1)
    assert driver.updates(0) == ["round v0: 1+0 0+0"]


def test_a_task_in_transit_on_the_same_connection_stays_open(drive):
    driver = drive("k-async", clients=2, k=1)
    driver.start()
    assert driver.join(0, same_connection=True) == []
    assert driver.join(0, same_connection=True, holding=(1,)) == []
    assert driver.updates(0) == ["round v0: 0+0"]


def test_a_lost_client_gets_a_new_task_on_any_connection_on_which_it_returns(drive):
    driver = drive("k-async", clients=2, k=1, lease_s=10.0)
    driver.start()
    driver.at(5.0).heartbeat(1)
    driver.at(10.0).fire("lease")
    assert driver.join(0, same_connection=True, holding=(1,)) == ["task 0 #3 v0 n1"]


def test_a_waiting_client_that_rejoins_keeps_waiting(drive):
    driver = drive("k-async", clients=2, k=1)
    driver.start()
    driver.refuse(0)
    assert driver.join(0) == []


def test_a_client_that_returns_while_its_update_is_pending_waits_for_the_round(drive):
    driver = drive("k-async", clients=3, k=2)
    driver.start()
    driver.updates(0)
    driver.leave(0)
    assert driver.join(0) == []
    assert driver.updates(1) == ["round v0: 0+0 1+0"]
    assert driver.applied() == ["task 0 #4 v1 n1", "task 1 #5 v1 n1"]


def test_a_client_that_returns_while_its_update_is_aggregated_waits_for_the_round(drive):
    driver = drive("k-async", clients=2, k=1)
    driver.start()
    driver.updates(0)
    driver.leave(0)
    assert driver.join(0) == []
    assert driver.applied() == ["task 0 #3 v1 n1"]


def test_with_a_buffered_trigger_a_client_that_returns_gets_a_task_at_once(drive):
    driver = drive("buffered", clients=2, k=2)
    driver.start()
    driver.updates(0)
    driver.leave(0)
    assert driver.join(0) == ["task 0 #5 v0 n2"]


def test_the_old_task_of_a_client_that_returns_stays_expired_even_if_it_names_it(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    driver.leave(0)
    assert driver.join(0, holding=(1,)) == ["task 0 #3 v0 n1"]
    assert driver.update(0, task_id=1)[0] == "ack 0 #1 rejected expired-task"
    assert driver.update(0) == ["ack 0 #3 accepted"]


# Leaving.


def test_the_task_of_a_client_that_left_has_expired_and_its_update_does_not_rejoin_it(drive):
    driver = drive("k-async", clients=2, k=2)
    driver.start()
    assert driver.leave(0) == []
    assert driver.update(0, task_id=1) == ["ack 0 #1 rejected expired-task", "discard 1"]
    assert not driver.coordinator.is_active(0)


def test_a_client_that_leaves_releases_the_version_that_only_it_used(drive):
    driver = drive("k-async", clients=2, k=1)
    driver.start()
    driver.updates(1)
    driver.applied()
    assert len(driver.coordinator.references.counts) == 2
    assert driver.leave(0) == ["forget v0"]
    assert len(driver.coordinator.references.counts) == 1


def test_a_client_that_is_not_a_member_leaves_without_effect(drive):
    driver = drive("async", clients=2, min_clients=1)
    assert driver.leave(1) == []
    assert driver.coordinator.clients_by_state["absent"] == 2
    driver.join(0)
    driver.leave(0)
    assert driver.leave(0) == []
    assert driver.coordinator.clients_by_state["left"] == 1


def test_a_heartbeat_of_a_client_that_has_not_joined_is_ignored(drive):
    driver = drive("async", clients=2, min_clients=1)
    assert driver.heartbeat(1) == []
    assert not driver.coordinator.is_active(1)


# Leases.


def test_a_client_silent_for_a_lease_is_lost_and_the_round_stops_waiting_for_it(drive):
    driver = drive("sync", clients=2, lease_s=10.0)
    assert driver.join(0) == ["set lease 10"]
    driver.at(1.0).join(1)
    driver.at(4.0).updates(1)
    # Client 0 was last heard of at 0, client 1 at 4; its lease runs out at 4 + 10 = 14.
    assert driver.at(10.0).fire("lease") == ["round v0: 1+0", "set lease 14"]
    assert driver.coordinator.clients_by_state["lost"] == 1


def test_a_lease_expires_exactly_at_its_time(drive):
    driver = drive("sync", clients=1, lease_s=0.1)
    driver.at(0.3).join(0)
    assert driver.at(0.3 + 0.1).fire("lease") == ["round v0:"]


def test_a_lease_timer_that_fires_a_little_early_is_set_again(drive):
    driver = drive("sync", clients=1, lease_s=10.0)
    driver.join(0)
    assert driver.at(9.999).fire("lease") == ["set lease 10"]


def test_every_event_of_a_client_renews_its_lease(drive):
    driver = drive("k-async", clients=5, k=5, lease_s=10.0)
    driver.start()
    driver.at(1.0).heartbeat(4)
    driver.at(2.0).update(3)
    driver.at(3.0).fail(2)
    driver.at(4.0).join(1, holding=(2,))
    driver.at(5.0).update(0, task_id=999)
    assert list(driver.coordinator.leases.last_seen_s.items()) == [
        (4, 1.0), (3, 2.0), (2, 3.0), (1, 4.0), (0, 5.0)
    ]  # fmt: skip
    assert driver.at(10.0).fire("lease") == ["set lease 11"]


def test_an_update_of_a_lost_client_gets_its_verdict_and_does_not_rejoin_it(drive):
    driver = drive("k-async", clients=2, k=2, lease_s=10.0)
    driver.start()
    driver.at(5.0).heartbeat(1)
    driver.at(10.0).fire("lease")
    assert driver.update(0, task_id=1) == ["ack 0 #1 rejected expired-task", "discard 1"]
    assert driver.coordinator.clients_by_state["lost"] == 1
    assert driver.join(0) == ["task 0 #3 v0 n1"]


def test_a_lost_client_that_says_goodbye_has_left(drive):
    driver = drive("async", clients=1, lease_s=10.0)
    driver.start()
    driver.at(10.0).fire("lease")
    assert driver.leave(0) == []
    assert driver.coordinator.clients_by_state["left"] == 1


def test_infinite_leases_need_no_timer(drive):
    driver = drive("async", clients=1, lease_s=float("inf"))
    assert driver.join(0) == ["evaluate v0", "task 0 #1 v0 n0"]
    assert driver.coordinator.timers == {}


def test_clients_lost_together_release_their_versions_in_ascending_order(drive):
    driver = drive("k-async", clients=3, k=1, lease_s=10.0)
    driver.at(0.0).start()
    driver.updates(0)
    driver.applied()
    driver.updates(1)
    driver.applied()
    driver.at(1.0).heartbeat(0)
    driver.heartbeat(2)
    driver.at(2.0).heartbeat(1)
    # Client 2 works on version 0, client 0 on version 1 and client 1 on version 2, the current one.
    assert driver.at(11.0).fire("lease") == ["forget v0", "forget v1", "set lease 12"]
