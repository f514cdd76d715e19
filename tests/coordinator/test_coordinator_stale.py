"""Clients that are stale by a number of rounds, by transcript.

Source: docs/methods/heterogeneity.md#staleness-in-rounds

A client that is T rounds stale delivers in round t the update that it computed from w_(t - T), once there is one.
"""

import pytest


def test_a_stale_client_works_on_the_version_of_its_number_of_rounds_before(drive):
    driver = drive("sync", clients=2, stale_rounds={1: 2})
    assert driver.start() == ["evaluate v0", "task 0 #1 v0 n0", "task 1 #2 v0 n0"]
    assert driver.updates(0, 1) == ["round v0: 0+0 1+0"]
    # t = 1 < T = 2: not stale yet. Version 0 is retained for it.
    assert driver.applied() == ["task 0 #3 v1 n1", "task 1 #4 v1 n1"]
    assert driver.updates(0, 1) == ["round v1: 0+0 1+0"]
    # t = 2: 2 - 2 = 0, which is older than its last task.
    assert driver.applied() == ["task 0 #5 v2 n2", "task 1 #6 v0 n2"]
    assert driver.updates(0, 1) == ["round v2: 0+0 1+2"]
    # t = 3: 3 - 2 = 1, and no task will be on version 0 again.
    assert driver.applied() == ["forget v0", "task 0 #7 v3 n3", "task 1 #8 v1 n3"]
    assert driver.updates(1, 0) == ["round v3: 1+2 0+0"]


def test_past_versions_are_stored_for_the_most_stale_client(drive):
    driver = drive("sync", clients=3, stale_rounds={0: 1, 2: 3})
    driver.start()
    kept = []
    for _ in range(6):
        driver.updates(0, 1, 2)
        driver.applied()
        kept.append(sorted(driver.coordinator.references.counts))
    assert kept == [[0, 1], [0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]


def test_a_lost_task_is_replaced_on_the_same_old_version(drive):
    driver = drive("sync", clients=1, stale_rounds={0: 1})
    driver.start()
    driver.updates(0)
    assert driver.applied() == ["task 0 #2 v0 n1"]
    assert driver.lose(0) == ["task 0 #3 v0 n2"]
    assert driver.updates(0) == ["round v1: 0+1"]


def test_an_update_of_a_stale_client_must_be_from_the_version_of_its_task(drive):
    driver = drive("sync", clients=2, stale_rounds={0: 1})
    driver.start()
    driver.updates(0, 1)
    driver.applied()
    assert driver.update(0, base_version=1)[0] == "ack 0 #3 rejected unknown-version"


def test_a_version_with_an_open_task_outlives_the_window(drive):
    driver = drive("deadline", clients=2, wait_s=1.0, stale_rounds={0: 1})
    driver.start()
    for round_number in range(3):
        driver.updates(0)
        driver.at(round_number + 1.0).fire("deadline")
        driver.applied()
    # Client 1 still has its first task, of version 0; versions 2 and 3 are the window.
    assert sorted(driver.coordinator.references.counts) == [0, 2, 3]
    assert driver.updates(1) == []
    assert driver.at(4.0).fire("deadline") == ["round v3: 1+3"]
    # Client 0 works on version 2 now, which has left the window as well.
    assert driver.applied() == ["forget v0", "task 1 #4 v4 n1", "set deadline 5"]


@pytest.mark.parametrize("stale_client", [2, 3])
def test_epochs_in_turn_with_one_client_a_round_late(drive, stale_client):
    driver = drive("sync", clients=4, size=2, selector="round-robin", stale_rounds={stale_client: 1})
    transcript, given = driver.start(), []
    for version in range(4):
        tasks = [words.split() for words in transcript if words.startswith("task")]
        given.append({int(words[1]): int(words[3].removeprefix("v")) for words in tasks})
        driver.updates(*given[version])
        transcript = driver.applied()
    other = 5 - stale_client
    assert given == [{0: 0, 1: 0}, {other: 1, stale_client: 0}, {0: 2, 1: 2}, {other: 3, stale_client: 2}]
