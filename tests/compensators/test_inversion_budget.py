"""The budget of inversion: iterations and seconds, per round and run, and updates beyond it."""

import math
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from support.compensation import PlayedClock, context, inversion, made, received, settings, stale_round, taken
from unstale.compensators import Outcome
from unstale.compensators.inversion.engine import Engine
from unstale.compensators.inversion.inversions import Budget, Inversions
from unstale.errors import UserError

UPDATES = (received(0, staleness=1), received(1, staleness=3), received(2, staleness=2))
"""Six iterations each; the second is the most stale, then the third."""
SAME = tuple(received(client_id, staleness=3) for client_id in range(3))


def methods(outcome: Outcome) -> list[str]:
    return [compensated.method for compensated in outcome.updates]


def iterations(outcome: Outcome) -> list[int | None]:
    return [compensated.iterations for compensated in outcome.updates]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> PlayedClock:
    """On which an iteration, of however many, takes a second."""
    played, iterate = PlayedClock(), Engine.iterate

    def in_a_second(self, some):
        iterate(self, some)
        played.now_s += 1

    monkeypatch.setattr(Engine, "iterate", in_a_second)
    return played


# Its counts.


@pytest.mark.parametrize(
    ("given", "spent", "in_round", "most"),
    [
        ({}, 10**6, 10**6, math.inf),
        ({"iterations_per_round": 10}, 50, 4, 6),
        ({"iterations_total": 60}, 50, 4, 10),
        ({"iterations_per_round": 10, "iterations_total": 53}, 50, 4, 3),
        ({"iterations_per_round": 10}, 0, 10, 0),
        ({"iterations_per_round": 10}, 0, 11, 0),
        ({"iterations_total": 50}, 50, 0, 0),
    ],
    ids=str,
)
def test_how_many_more_iterations_fit(given, spent, in_round, most):
    budget = Budget(settings(**given), None)
    budget.iterations = spent
    assert budget.room(in_round) == most


def test_it_counts_the_seconds_that_something_takes():
    clock = PlayedClock()
    budget = Budget(settings(seconds_total=3.0), clock)
    with budget.timed():
        clock.now_s += 1.25
    clock.now_s += 50  # no thread computes
    with suppress(torch.OutOfMemoryError), budget.timed():
        clock.now_s += 1.5
        raise torch.OutOfMemoryError
    assert (budget.seconds, budget.is_spent) == (2.75, False)
    with budget.timed():
        clock.now_s += 0.25
    assert (budget.seconds, budget.is_spent) == (3.0, True)
    assert budget.room(0) == 0


def test_a_round_has_waited_long_enough_once_its_seconds_are_over():
    clock = PlayedClock()
    budget = Budget(settings(seconds_per_round=2.0), clock)
    clock.now_s += 10
    budget.close_round()
    assert budget.left_s == 2.0
    clock.now_s += 1.5
    assert budget.left_s == 0.5
    clock.now_s += 0.5
    assert budget.left_s == 0.0
    budget.close_round()
    assert budget.left_s == 2.0


@pytest.mark.parametrize("key", ["seconds_per_round", "seconds_total"])
def test_a_simulation_has_no_seconds(key):
    other = key.replace("seconds", "iterations")
    with pytest.raises(UserError) as caught:
        inversion(**{key: 1.5})
    assert str(caught.value) == (
        f"compensator.settings.{key} is 1.5, but a simulation has no seconds to count, expected null; "
        f"set {other} to bound the work"
    )


# Iterations.


def test_without_a_bound_all_are_inverted():
    outcome = taken(inversion(), *UPDATES)
    assert iterations(outcome) == [6, 6, 6]
    assert (dict(outcome.fallbacks), list(outcome.notes)) == ({}, [])


@pytest.mark.parametrize("start", ["arrival", "close"])
@pytest.mark.parametrize(
    ("most", "done"),
    [
        (18, [6, 6, 6]),
        (17, [5, 6, 6]),
        (14, [2, 6, 6]),
        (13, [None, 6, 6]),  # 1 is less than iterations_min
        (12, [None, 6, 6]),
        (8, [None, 6, 2]),
        (5, [None, 5, None]),
        (2, [None, 2, None]),
        (1, [None, None, None]),
    ],
)
def test_a_round_inverts_the_most_stale_as_far_as_fits(most, done, start):
    outcome = taken(inversion(iterations_per_round=most, start=start), *UPDATES)
    assert iterations(outcome) == done
    assert methods(outcome) == ["first-order" if one is None else "gradient-inversion" for one in done]
    assert outcome.fallbacks.get("budget", 0) == done.count(None)


def test_a_run_s_last_iterations_are_used_if_they_are_enough():
    subject = inversion(iterations_total=9, start="close", warm_start=False)
    assert iterations(taken(subject, SAME[0])) == [6]
    assert iterations(taken(subject, SAME[1])) == [3]
    assert iterations(taken(subject, SAME[2])) == [None]
    assert subject.inversions.budget.iterations == 9


def test_one_that_is_to_have_fewer_iterations_than_the_least_is_used():
    assert iterations(taken(made("gradient-inversion", iterations=3), UPDATES[0])) == [3]


def test_of_equally_stale_ones_the_first_is_inverted():
    assert methods(taken(inversion(iterations_per_round=6), *SAME)) == [
        "gradient-inversion",
        "first-order",
        "first-order",
    ]


def test_updates_beyond_the_budget_are_compensated_to_first_order():
    outcome = taken(inversion(iterations_per_round=1, lambda_u=3.0), *UPDATES)
    expected = taken(made("first-order", lambda_u=3.0), *UPDATES)
    assert all(outcome.vectors[place].equal(expected.vectors[place]) for place in range(3))


def test_a_round_has_its_bound_anew():
    subject = inversion(iterations_per_round=6, warm_start=False)
    for version in (3, 4, 5):
        update = received(0, base_version=version - 3)
        assert iterations(taken(subject, update, version=version)) == [6]


@pytest.mark.parametrize("begun", [0, 1, 4, 7, 12])
@pytest.mark.parametrize("most", [4, 7, 13, 17])
def test_no_round_takes_more_iterations_than_it_may(most, begun):
    # Some of them while the round was open, of updates whose order in the round is another.
    subject = Inversions(settings(iterations_per_round=most), context())
    for update in UPDATES[::2]:
        subject.begin(update)
    for _ in range(begun):
        subject.work()
    subject.finish(dict(enumerate(UPDATES)))
    assert subject.budget.iterations <= most


@pytest.mark.parametrize("most", [5, 6, 10, 17, 18, 19, 25, 40])
def test_no_run_takes_more_iterations_than_it_may(most):
    subject = Inversions(settings(iterations_total=most, warm_start=False), context())
    for version in (3, 4, 5):
        updates = [replace(update, base_version=version) for update in SAME]
        subject.finish(dict(enumerate(updates)))
    assert subject.budget.iterations <= most


def test_when_the_run_has_had_its_iterations_the_rest_is_of_first_order():
    subject = inversion(iterations_total=12, warm_start=False)
    outcomes = [taken(subject, received(0, base_version=version), version=version + 3) for version in range(3)]
    assert [methods(outcome) for outcome in outcomes] == [
        ["gradient-inversion"],
        ["gradient-inversion"],
        ["first-order"],
    ]
    assert [dict(outcome.fallbacks) for outcome in outcomes] == [{}, {}, {"budget": 1}]


# Before the round closes.


def test_early_iterations_count_for_the_round():
    subject = inversion()
    subject.begin(UPDATES[0])
    subject.begin(UPDATES[0])
    assert [subject.work() for _ in range(7)] == [True] * 6 + [False]
    outcome = taken(subject, UPDATES[0])
    assert iterations(outcome) == [6]
    assert subject.inversions.budget.iterations == 6


def test_begun_early_it_ends_where_it_would_have_ended():
    early, late = inversion(), inversion(start="close")
    early.begin(UPDATES[0])
    assert early.work()
    assert taken(early, UPDATES[0]).vectors[0].equal(taken(late, UPDATES[0]).vectors[0])


def test_work_is_on_the_most_stale_first_and_stops_at_the_bound_of_a_round():
    subject = inversion(iterations_per_round=8)
    subject.begin(received(0, staleness=1, num_examples=4))  # two examples: of another kind
    subject.begin(received(1, staleness=2))
    while subject.work():
        pass
    assert {key[0]: one.done for key, one in subject.inversions._open.items()} == {0: 2, 1: 6}


def test_nothing_is_begun_with_the_update_where_inversions_begin_with_the_round():
    assert inversion().begins_early
    assert not inversion(start="close").begins_early
    assert not made("first-order").begins_early


def test_no_inversion_starts_for_an_update_whose_base_was_deleted():
    subject = inversion()
    subject.begin(received(is_kept=False))
    assert not subject.work()


def test_no_work_is_left_of_a_round_that_was_applied():
    # It was begun while inversion was on, and its round came after the last one that inverts.
    subject = inversion(last_round=3)
    subject.begin(received(0, staleness=2))  # arrives at version 2
    assert subject.work()
    taken(subject, received(0, staleness=3), version=3)
    assert not subject.work()
    assert not subject.inversions._open


class Elsewhere:
    """Other machines, which are never done."""

    def __init__(self) -> None:
        self.future: Future[bytes] = Future()

    def submit(self, group: bytes) -> "Future[bytes]":
        return self.future


def test_remote_inversions_of_a_round_without_inversion_are_cancelled():
    elsewhere = Elsewhere()
    subject = inversion(where=replace(context(), executor=elsewhere), last_round=3)
    subject.begin(received(0, staleness=2))
    subject.work()
    taken(subject, received(0, staleness=3), version=3)
    assert elsewhere.future.cancelled()


# Seconds.


def inverted_in_seconds(clock: PlayedClock, **given):
    return inversion(where=context(clock=clock), **given)


def test_a_round_out_of_time_uses_the_current_iterates(clock):
    outcome = taken(inverted_in_seconds(clock, seconds_per_round=2.5), *SAME)
    assert iterations(outcome) == [3, 3, 3]
    assert dict(outcome.fallbacks) == {}


def test_an_inversion_with_too_few_iterations_is_not_used(clock):
    outcome = taken(inverted_in_seconds(clock, seconds_per_round=2.5, iterations_min=4), *SAME)
    assert methods(outcome) == ["first-order"] * 3
    assert dict(outcome.fallbacks) == {"budget": 3}


def test_seconds_before_the_round_closed_are_not_its_own(clock):
    subject = inverted_in_seconds(clock, seconds_per_round=2.5)
    subject.begin(SAME[0])
    for _ in range(3):
        assert subject.work()
    assert iterations(taken(subject, SAME[0])) == [6]


def test_seconds_of_the_run_end_it(clock):
    subject = inverted_in_seconds(clock, seconds_total=8.0, warm_start=False)
    outcomes = [taken(subject, received(0, base_version=version), version=version + 3) for version in range(3)]
    assert [iterations(outcome) for outcome in outcomes] == [[6], [2], [None]]
    assert [dict(outcome.fallbacks) for outcome in outcomes] == [{}, {}, {"budget": 1}]


def test_measuring_and_estimating_count_as_seconds(clock, monkeypatch):
    subject = inverted_in_seconds(clock, seconds_per_round=4.5, warm_start=False)
    taken(subject, SAME[0])
    assert subject.inversions.budget.seconds == 5  # iterations
    local_update = Engine.local_update

    def in_half_a_second(self, *args):
        clock.now_s += 0.5
        return local_update(self, *args)

    monkeypatch.setattr(Engine, "local_update", in_half_a_second)
    later = received(0, base_version=3, staleness=3)
    outcome = taken(subject, later, version=6)
    # What was reconstructed is asked at both models: 1 s. Of 3.5 s four iterations take 4; then the estimate, 1 s.
    assert len(outcome.errors) == 3
    assert iterations(outcome) == [4]
    assert subject.inversions.budget.seconds == 5 + 6


def test_the_state_and_the_record_contain_the_spent_budget(clock):
    subject, resumed, replayed = (inverted_in_seconds(clock, seconds_total=8.0) for _ in range(3))
    round_ = stale_round(SAME[0])
    recorded = subject.make(round_)
    for one in (subject, replayed):
        one.take(round_, recorded)
    resumed.load_state_dict(subject.state_dict())
    for one in (subject, resumed, replayed):
        budget = one.inversions.budget
        assert (budget.iterations, budget.seconds) == (6, 6.0)
