"""Clients that contribute once a cycle, by transcript. `conftest.py` defines the words.

Source: docs/methods/policies-with-memory.md#gsgm

With 4 clients, the second task of client c is #(4 + c + 1), the third #(8 + c + 1).
"""

import pytest


@pytest.fixture
def driver(drive):
    """Four clients at work, rounds of two."""
    made = drive("k-async", clients=4, k=2, once_a_cycle=True)
    made.start()
    return made


def pending(driver) -> tuple[list[int], list[int]]:
    """The clients whose updates are ready, and those whose updates are parked."""
    waiting = driver.coordinator.pending
    clients = [update.client_id for update in waiting]
    return clients[: waiting.ready], clients[waiting.ready :]


def test_a_client_that_has_had_its_turn_is_parked_until_all_have(driver):
    assert driver.updates(0, 1) == ["round v0: 0+0 1+0"]
    assert driver.applied() == ["task 0 #5 v1 n1", "task 1 #6 v1 n1"]
    assert driver.updates(0) == []
    assert pending(driver) == ([], [0])
    assert driver.updates(1) == []
    assert pending(driver) == ([], [0, 1])
    assert driver.updates(3) == []
    assert pending(driver) == ([3], [0, 1])
    # 2 is the last of the cycle. The earlier updates of 0 and 1 are not in the round.
    assert driver.updates(2) == ["round v1: 3+1 2+1"]
    assert pending(driver) == ([0, 1], [])
    # The new cycle begins with them: computed from version 1, aggregated into version 2.
    assert driver.applied() == ["forget v0", "task 3 #8 v2 n1", "task 2 #7 v2 n1", "round v2: 0+1 1+1"]


def test_the_end_of_a_cycle_keeps_parked_updates_in_order_of_arrival(driver):
    driver.updates(0, 1)
    driver.applied()
    driver.updates(1, 0, 3, 2)
    assert pending(driver) == ([1, 0], [])
    assert driver.applied()[-1] == "round v2: 1+1 0+1"


def test_during_aggregation_the_clients_of_a_round_have_had_their_turn(driver):
    driver.updates(0, 1)
    assert driver.coordinator.pending.contributed == {0, 1}
    assert driver.updates(2) == []
    assert pending(driver) == ([2], [])


def test_with_async_every_round_is_one_client_and_none_leads_twice(drive):
    driver = drive("async", clients=2, once_a_cycle=True)
    driver.start()
    assert driver.updates(0) == ["round v0: 0+0"]
    driver.applied()
    assert driver.updates(0) == []
    assert pending(driver) == ([], [0])
    # 1 ends the cycle, 0 is the first of the next one.
    assert driver.updates(1) == ["round v1: 1+1"]
    assert driver.applied()[-1] == "round v2: 0+1"


@pytest.mark.parametrize("gone", ["leave", "fail", "refuse"])
def test_a_cycle_ends_without_missing_clients_that_left(driver, gone):
    driver.updates(0, 1)
    driver.applied()
    driver.updates(0, 1)
    assert getattr(driver, gone)(2) == []  # 3 may still contribute
    assert pending(driver) == ([], [0, 1])
    assert [words for words in getattr(driver, gone)(3) if words != "forget v0"] == ["round v1: 0+0 1+0"]
    assert driver.coordinator.pending.contributed == {0, 1}


def test_a_cycle_ends_without_missing_clients_that_are_lost(drive):
    driver = drive("k-async", clients=4, k=2, lease_s=10.0, once_a_cycle=True)
    driver.start()
    driver.updates(0, 1)
    driver.applied()
    driver.at(6.0).updates(0, 1)
    assert pending(driver) == ([], [0, 1])
    assert driver.at(10.0).fire("lease") == ["forget v0", "round v1: 0+0 1+0", "set lease 16"]


def test_missing_clients_that_left_before_any_update_is_parked_delay_no_round(driver):
    driver.updates(0, 1)
    driver.applied()
    driver.leave(2)
    driver.leave(3)
    # No client without a turn is awaited, so the next cycle begins: with 0, and then 1 is awaited.
    assert driver.updates(0) == []
    assert pending(driver) == ([0], [])
    assert driver.updates(1) == ["round v1: 0+0 1+0"]


def test_a_ready_update_precedes_parked_ones_although_its_round_is_not_full(driver):
    driver.updates(0, 1)
    driver.applied()
    driver.updates(0, 1, 2)
    assert pending(driver) == ([2], [0, 1])
    # 3 was the last that could join 2: the round closes with 2 alone, and the cycle continues without 3.
    assert driver.leave(3) == ["round v1: 2+1"]
    assert pending(driver) == ([], [0, 1])
    # 2 has a new task, but has had its turn: no client is awaited, so the next cycle begins.
    assert driver.applied()[-1] == "round v2: 0+1 1+1"
    assert driver.coordinator.pending.contributed == {0, 1}


def test_a_client_that_rejoins_has_its_turn_in_the_current_cycle(driver):
    driver.updates(0, 1)
    driver.applied()
    driver.leave(2)
    driver.updates(0, 1)
    assert driver.join(2) == ["task 2 #7 v1 n1"]
    assert driver.updates(3) == []
    assert driver.updates(2) == ["round v1: 3+1 2+0"]
    assert pending(driver) == ([0, 1], [])


def test_a_client_that_rejoins_after_its_turn_has_no_second_turn(driver):
    driver.updates(0, 1)
    driver.applied()
    driver.leave(0)
    assert driver.join(0) == ["task 0 #9 v1 n2"]
    assert driver.updates(0) == []
    assert pending(driver) == ([], [0])


def test_the_parked_update_of_a_client_that_left_still_counts_in_the_next_cycle(driver):
    driver.updates(0, 1)
    driver.applied()
    driver.updates(0)
    driver.leave(0)
    assert pending(driver) == ([], [0])
    driver.updates(1)
    assert driver.updates(2, 3) == ["round v1: 2+1 3+1"]
    assert driver.applied()[-1] == "round v2: 0+1 1+1"
    assert driver.coordinator.accepted == 6


def test_without_cycles_a_fast_client_contributes_repeatedly(drive):
    driver = drive("k-async", clients=4, k=2)
    driver.start()
    driver.updates(0, 1)
    driver.applied()
    assert driver.updates(0, 1) == ["round v1: 0+0 1+0"]
