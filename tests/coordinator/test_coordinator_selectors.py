"""Selection of the clients that get tasks."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstale.coordinator.selectors import All, LeastAvailable, Random, RoundRobin
from unstale.seeds import Stream, stream


def clients_of(words: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in words if line.startswith("task")]


@given(
    candidates=st.lists(st.integers(0, 50), unique=True).map(sorted),
    size=st.integers(1, 20),
    busy=st.integers(0, 25),
    seed=st.integers(0, 2**32),
)
def test_random_fills_the_free_places_with_distinct_candidates(candidates, size, busy, seed):
    chosen = list(Random(size=size).choose(candidates, busy=busy, seed=seed, key=(3,)))
    assert len(chosen) == min(max(0, size - busy), len(candidates))
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(candidates)


@given(candidates=st.lists(st.integers(0, 50), unique=True).map(sorted), busy=st.integers(0, 50))
def test_all_selects_every_client(candidates, busy):
    assert list(All().choose(candidates, busy=busy, seed=0, key=(3,))) == candidates


def test_random_draws_from_the_stream_of_its_purpose_and_key():
    candidates = [2, 3, 5, 7, 11, 13]
    drawn = stream(9, Stream.SELECTION, 4).choice(6, size=2, replace=False)
    expected = sorted(candidates[index] for index in drawn)
    assert list(Random(size=2).choose(candidates, busy=0, seed=9, key=(4,))) == expected


def test_a_single_place_is_drawn_with_one_integer():
    expected = [2, 3, 5][int(stream(9, Stream.SELECTION, 4, 1).integers(3))]
    assert list(Random(size=2).choose([2, 3, 5], busy=1, seed=9, key=(4, 1))) == [expected]


def test_over_many_rounds_random_draws_every_pair_about_equally_often():
    pairs = [tuple(Random(size=2).choose([0, 1, 2, 3], busy=0, seed=1, key=(key,))) for key in range(1200)]
    # Six pairs, 1200 / 6 = 200 each on average, with standard deviation sqrt(1200 * 1/6 * 5/6) = 12.9.
    for pair in itertools.combinations(range(4), 2):
        assert abs(pairs.count(pair) - 200) < 65


# In turn.


@pytest.mark.parametrize(
    ("version", "chosen"), [(0, [0, 1, 2]), (1, [3, 4, 5]), (2, [0, 6, 7]), (3, [1, 2, 3]), (8, [0, 1, 2])]
)
def test_version_t_belongs_to_the_clients_from_t_times_size_on(version, chosen):
    # Of eight clients three at a time: version 2 begins with 2 * 3 = 6 and wraps from 7 to 0.
    assert list(RoundRobin(size=3, clients=8).choose(range(8), busy=0, seed=0, key=(version,))) == chosen


@given(st.data())
def test_a_turn_selects_the_candidates_among_its_clients(data):
    clients = data.draw(st.integers(1, 20))
    size = data.draw(st.integers(1, clients))
    version = data.draw(st.integers(0, 100))
    candidates = sorted(data.draw(st.sets(st.integers(0, clients - 1))))
    turn = {(version * size + place) % clients for place in range(size)}
    chosen = RoundRobin(size=size, clients=clients).choose(candidates, busy=0, seed=3, key=(version, 7))
    assert list(chosen) == sorted(turn.intersection(candidates))


def test_over_n_rounds_every_client_has_equally_many_turns():
    turns = [
        list(RoundRobin(size=4, clients=10).choose(range(10), busy=0, seed=0, key=(version,))) for version in range(10)
    ]
    assert sorted(itertools.chain(*turns)) == sorted([*range(10)] * 4)


def test_a_turn_of_absent_clients_passes_without_updates(drive):
    driver = drive("sync", clients=2, size=1, selector="round-robin", min_clients=1)
    assert driver.join(0)[:2] == ["evaluate v0", "task 0 #1 v0 n0"]
    assert driver.updates(0) == ["round v0: 0+0"]
    assert driver.applied() == ["forget v0", "round v1:"]
    assert driver.applied() == ["forget v1", "task 0 #3 v2 n1"]


def test_a_turn_that_its_clients_decline_is_not_reassigned(drive):
    driver = drive("sync", clients=3, size=1, selector="round-robin")
    assert clients_of(driver.start()) == [0]
    assert driver.decline(0) == ["round v0:"]
    assert clients_of(driver.applied()) == [1]


# Least available first.


@given(st.data())
def test_the_least_available_clients_are_selected_first(data):
    availability = data.draw(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12, unique=True))
    candidates = sorted(data.draw(st.sets(st.integers(0, len(availability) - 1))))
    size, busy = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 14))
    selector = LeastAvailable(size=size, availability=tuple(availability))
    chosen = selector.choose(candidates, busy=busy, seed=1, key=(3,))
    by_availability = sorted(candidates, key=lambda client_id: availability[client_id])
    assert list(chosen) == sorted(by_availability[: max(0, size - busy)])


def test_among_equally_available_clients_every_pair_is_drawn_about_equally_often():
    selector = LeastAvailable(size=3, availability=(0.5, 0.5, 0.1, 0.5, 0.5, 0.9))
    chosen = [tuple(selector.choose(range(6), busy=0, seed=1, key=(key,))) for key in range(1200)]
    # Client 2 always, 5 never; six pairs of the others, 200 each on average, with standard deviation 12.9.
    for first, second in itertools.combinations((0, 1, 3, 4), 2):
        assert abs(chosen.count(tuple(sorted((first, second, 2)))) - 200) < 65


def test_a_declined_place_goes_to_the_next_least_available_client(drive):
    driver = drive("sync", clients=4, size=2, selector="availability", availability=(0.9, 0.2, 0.5, 0.4))
    assert clients_of(driver.start()) == [1, 3]
    assert clients_of(driver.decline(1)) == [2]
    assert clients_of(driver.decline(3)) == [0]
    assert driver.updates(2, 0) == ["round v0: 2+0 0+0"]
    assert clients_of(driver.applied()) == [1, 3]


# In a run.


@pytest.mark.parametrize("trigger", ["sync", "k-sync"])
def test_each_round_has_size_participants_drawn_for_its_version(drive, trigger):
    driver = drive(trigger, clients=6, size=3, k=3 if trigger == "k-sync" else None, seed=5)
    chosen = clients_of(driver.start())
    for version in range(3):
        drawn = stream(5, Stream.SELECTION, version).choice(6, size=3, replace=False)
        assert chosen == sorted(drawn.tolist())
        driver.updates(*chosen)
        chosen = clients_of(driver.applied())


def test_participants_are_drawn_from_the_active_clients_only(drive):
    driver = drive("sync", clients=4, size=2, min_clients=4)
    chosen = clients_of(driver.start())
    gone = [client_id for client_id in range(4) if client_id not in chosen]
    for client_id in gone:
        driver.leave(client_id)
    driver.updates(*chosen)
    assert clients_of(driver.applied()) == chosen


def test_a_deadline_straggler_that_is_drawn_again_keeps_its_task(drive):
    driver = drive("deadline", clients=2, size=2, wait_s=10.0)
    driver.start()
    driver.updates(0)
    driver.at(10.0).fire("deadline")
    assert clients_of(driver.applied()) == [0]


def test_at_most_size_clients_are_busy_and_a_place_is_free_when_the_round_is_applied(drive):
    driver = drive("k-async", clients=6, k=1, size=2)
    busy = clients_of(driver.start())
    assert len(busy) == 2
    assert clients_of(driver.updates(busy[0])) == []
    chosen = clients_of(driver.applied())
    assert len(chosen) == 1
    assert chosen[0] != busy[1]


def test_a_client_that_waits_for_its_round_keeps_its_place(drive):
    driver = drive("k-async", clients=3, k=2, size=2, min_clients=2)
    driver.join(0, 1)
    driver.updates(0)
    assert clients_of(driver.join(2)) == []


def test_the_place_of_a_client_that_left_is_filled_at_once(drive):
    driver = drive("k-async", clients=3, k=2, size=2)
    busy = clients_of(driver.start())
    (idle,) = {0, 1, 2} - set(busy)
    assert clients_of(driver.leave(busy[0])) == [idle]


def test_a_client_that_joins_waits_while_there_is_no_place(drive):
    driver = drive("k-async", clients=3, k=1, size=1, min_clients=2)
    driver.join(0, 1)
    assert clients_of(driver.join(2)) == []


def test_with_a_buffered_trigger_a_place_is_free_once_an_update_is_accepted(drive):
    driver = drive("buffered", clients=5, k=3, size=2)
    busy = clients_of(driver.start())
    transcript = driver.update(busy[0])
    assert len(clients_of(transcript)) == 1
    assert driver.coordinator.membership.outstanding == 2


def test_the_place_of_a_refused_client_stays_empty_until_the_round_is_applied(drive):
    driver = drive("k-async", clients=4, k=1, size=2)
    busy = clients_of(driver.start())
    assert driver.refuse(busy[0]) == []
    driver.updates(busy[1])
    assert len(clients_of(driver.applied())) == 2


def test_a_client_whose_task_was_lost_in_transit_keeps_its_place(drive):
    driver = drive("k-async", clients=4, k=1, size=1)
    (busy,) = clients_of(driver.start())
    assert clients_of(driver.join(busy)) == [busy]
