"""Who gets a task."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstale.coordinator.selectors import All, Random
from unstale.seeds import Stream, stream


def told_to(words: list[str]) -> list[int]:
    return [int(told.split()[1]) for told in words if told.startswith("task")]


@given(
    candidates=st.lists(st.integers(0, 50), unique=True).map(sorted),
    size=st.integers(1, 20),
    busy=st.integers(0, 25),
    seed=st.integers(0, 2**32),
)
def test_random_fills_the_free_places_with_distinct_candidates(candidates, size, busy, seed):
    chosen = list(Random(size).choose(candidates, busy=busy, seed=seed, key=(3,)))
    assert len(chosen) == min(max(0, size - busy), len(candidates))
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(candidates)


@given(candidates=st.lists(st.integers(0, 50), unique=True).map(sorted), busy=st.integers(0, 50))
def test_all_is_everyone(candidates, busy):
    assert list(All().choose(candidates, busy=busy, seed=0, key=(3,))) == candidates


def test_random_draws_from_the_stream_of_its_purpose_and_key():
    candidates = [2, 3, 5, 7, 11, 13]
    drawn = stream(9, Stream.SELECTION, 4).choice(6, size=2, replace=False)
    expected = sorted(candidates[index] for index in drawn)
    assert list(Random(2).choose(candidates, busy=0, seed=9, key=(4,))) == expected


def test_a_single_place_is_drawn_with_one_integer():
    expected = [2, 3, 5][int(stream(9, Stream.SELECTION, 4, 1).integers(3))]
    assert list(Random(2).choose([2, 3, 5], busy=1, seed=9, key=(4, 1))) == [expected]


def test_over_many_rounds_random_draws_every_pair_about_equally_often():
    pairs = [tuple(Random(2).choose([0, 1, 2, 3], busy=0, seed=1, key=(key,))) for key in range(1200)]
    # Six pairs, 1200 / 6 = 200 each on average, with standard deviation sqrt(1200 * 1/6 * 5/6) = 12.9.
    for pair in itertools.combinations(range(4), 2):
        assert abs(pairs.count(pair) - 200) < 65


@pytest.mark.parametrize("trigger", ["sync", "k-sync"])
def test_each_round_has_size_participants_drawn_for_its_version(drive, trigger):
    driver = drive(trigger, clients=6, size=3, k=3 if trigger == "k-sync" else None, seed=5)
    chosen = told_to(driver.start())
    for version in range(3):
        drawn = stream(5, Stream.SELECTION, version).choice(6, size=3, replace=False)
        assert chosen == sorted(drawn.tolist())
        driver.updates(*chosen)
        chosen = told_to(driver.applied())


def test_participants_are_drawn_from_the_active_clients_only(drive):
    driver = drive("sync", clients=4, size=2, min_clients=4)
    chosen = told_to(driver.start())
    gone = [client_id for client_id in range(4) if client_id not in chosen]
    for client_id in gone:
        driver.leave(client_id)
    driver.updates(*chosen)
    assert told_to(driver.applied()) == chosen


def test_a_deadline_straggler_that_is_drawn_again_works_on_instead_of_getting_a_task(drive):
    driver = drive("deadline", clients=2, size=2, wait_s=10.0)
    driver.start()
    driver.updates(0)
    driver.at(10.0).fire("deadline")
    assert told_to(driver.applied()) == [0]


def test_at_most_size_clients_are_busy_and_a_place_is_free_when_the_round_is_applied(drive):
    driver = drive("k-async", clients=6, k=1, size=2)
    busy = told_to(driver.start())
    assert len(busy) == 2
    assert told_to(driver.updates(busy[0])) == []
    chosen = told_to(driver.applied())
    assert len(chosen) == 1
    assert chosen[0] != busy[1]


def test_a_client_that_waits_for_its_round_keeps_its_place(drive):
    driver = drive("k-async", clients=3, k=2, size=2, min_clients=2)
    driver.join(0, 1)
    driver.updates(0)
    assert told_to(driver.join(2)) == []


def test_the_place_of_a_client_that_left_is_filled_at_once(drive):
    driver = drive("k-async", clients=3, k=2, size=2)
    busy = told_to(driver.start())
    (idle,) = {0, 1, 2} - set(busy)
    assert told_to(driver.leave(busy[0])) == [idle]


def test_a_client_that_joins_waits_while_there_is_no_place(drive):
    driver = drive("k-async", clients=3, k=1, size=1, min_clients=2)
    driver.join(0, 1)
    assert told_to(driver.join(2)) == []


def test_with_a_buffered_trigger_a_place_is_free_once_an_update_is_accepted(drive):
    driver = drive("buffered", clients=5, k=3, size=2)
    busy = told_to(driver.start())
    told = driver.update(busy[0])
    assert len(told_to(told)) == 1
    assert driver.coordinator.membership.outstanding == 2


def test_the_place_of_a_refused_client_stays_empty_until_the_round_is_applied(drive):
    driver = drive("k-async", clients=4, k=1, size=2)
    busy = told_to(driver.start())
    assert driver.refuse(busy[0]) == []
    driver.updates(busy[1])
    assert len(told_to(driver.applied())) == 2


def test_a_client_whose_task_was_lost_on_the_way_keeps_its_place(drive):
    driver = drive("k-async", clients=4, k=1, size=1)
    (busy,) = told_to(driver.start())
    assert told_to(driver.join(busy)) == [busy]
