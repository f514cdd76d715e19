"""Tasks that never reached their client, by transcript. `conftest.py` defines the words."""


def test_a_lost_task_is_replaced_on_the_current_version(drive):
    driver = drive("k-async", clients=2, k=1)
    driver.start()
    driver.updates(1)
    driver.applied()
    assert driver.lose(0) == ["forget v0", "task 0 #3 v1 n1"]
    assert driver.update(0, task_id=1, base_version=0)[0] == "ack 0 #1 rejected expired-task"
    assert driver.update(0) == ["ack 0 #3 accepted", "round v1: 0+0"]


def test_a_lost_task_is_replaced_in_the_same_round(drive):
    driver = drive("sync", clients=2)
    driver.start()
    assert driver.lose(0) == ["task 0 #3 v0 n1"]
    driver.updates(1)
    assert driver.updates(0) == ["round v0: 1+0 0+0"]


def test_a_client_whose_task_was_lost_keeps_its_place_without_a_draw(drive):
    driver = drive("k-async", clients=8, k=1, size=1)
    (transcript,) = [words for words in driver.start() if words.startswith("task")]
    place = int(transcript.split()[1])
    assert driver.lose(place) == [f"task {place} #{8 + place + 1} v0 n1"]


def test_a_lost_task_is_neither_a_failure_nor_declined(drive):
    driver = drive("sync", clients=1)
    driver.start()
    driver.lose(0)
    coordinator = driver.coordinator
    assert (coordinator.failed, coordinator.declined, coordinator.consecutive_failures) == (0, 0, 0)
    assert coordinator.membership.outstanding == 1


def test_a_lost_task_event_of_a_task_that_is_not_open_only_renews_the_lease(drive):
    driver = drive("k-async", clients=2, k=2, lease_s=10.0)
    driver.start()
    driver.updates(0)
    assert driver.at(2.0).lose(0, task_id=1) == []
    assert driver.at(3.0).decline(1, task_id=99) == []
    assert list(driver.coordinator.leases.last_seen_s.items()) == [(0, 2.0), (1, 3.0)]


def test_after_the_end_a_lost_task_is_not_replaced(drive):
    driver = drive("sync", clients=1)
    driver.start()
    driver.stop()
    assert driver.lose(0) == []
