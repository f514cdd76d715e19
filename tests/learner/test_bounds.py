"""The bounds on norms against medians computed by hand. A bound is 20 medians, and an envelope decays to 99 %."""

from collections.abc import Iterable
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unstale.learner import bounds
from unstale.learner.bounds import MedianBound, NormBounds
from unstale.learner.row_checks import Norms

FIRST = 100.0


def with_accepted(clients: int, norms: Iterable[float]) -> MedianBound:
    """A bound after one norm of each client, from client 0 on."""
    bound = MedianBound(clients)
    for client_id, norm in enumerate(norms):
        assert bound.allows(client_id, norm, FIRST)
        bound.record(client_id, norm, accepted=True)
    return bound


def test_the_bound_is_a_multiple_of_the_median_over_clients() -> None:
    assert with_accepted(6, [1, 2, 3]).bound(inf) == 40
    assert with_accepted(6, [3, 1, 4, 2]).bound(inf) == 60  # the upper one of two


@pytest.mark.parametrize("reported", [[], [1.0], [1.0, 1.0]])
def test_before_there_is_a_median_the_first_updates_have_a_bound_of_their_own(reported: list[float]) -> None:
    bound = with_accepted(20, reported)
    assert bound.bound(FIRST) == FIRST
    assert not bound.allows(19, 1e16, FIRST)


def test_both_bounds_apply_until_enough_clients_have_reported() -> None:
    bound = with_accepted(20, [50.0] * 9)
    assert bound.bound(FIRST) == FIRST
    bound.record(9, 50.0, accepted=True)  # half of them
    assert bound.bound(FIRST) == 1000


def test_a_first_and_repeated_attacker_does_not_set_the_bound() -> None:
    bound = MedianBound(20)
    for _ in range(50):
        assert not bound.allows(0, 1e16, FIRST)
        bound.record(0, 1e16, accepted=False)
    for client_id in range(1, 20):
        assert bound.allows(client_id, 2.0, FIRST)
        bound.record(client_id, 2.0, accepted=True)
    assert bound.bound(FIRST) == 40


def test_with_two_clients_neither_is_a_minority() -> None:
    bound = MedianBound(2)
    assert bound.allows(0, 1e16, FIRST)
    bound.record(0, 1.0, accepted=True)
    assert bound.allows(1, 1e16, FIRST)


def test_a_client_has_one_vote_for_any_number_of_reports() -> None:
    bound = with_accepted(5, [1.0, 1.0, 1.0, 1.0])
    for _ in range(100):
        bound.record(4, 19.0, accepted=True)
    assert bound.bound(FIRST) == 20


def test_a_vote_is_the_largest_norm_decayed_by_later_accepted_updates() -> None:
    bound = with_accepted(3, [8.0, 8.0, 8.0])
    for client_id in range(3):
        bound.record(client_id, 1.0, accepted=True)
    assert bound.median == 8 * 0.99
    for _ in range(1000):
        for client_id in range(3):
            bound.record(client_id, 1.0, accepted=True)
    assert bound.median == 1.0


def test_a_norm_refused_for_most_clients_becomes_the_bound() -> None:
    bound = with_accepted(5, [1.0] * 5)
    for client_id in (0, 1):
        assert not bound.allows(client_id, 1000.0, FIRST)
        bound.record(client_id, 1000.0, accepted=False)
    assert bound.allows(2, 1000.0, FIRST)  # the third of five
    bound.record(2, 1000.0, accepted=True)
    assert bound.bound(FIRST) == 20_000


def test_a_good_update_clears_a_damaged_one() -> None:
    bound = with_accepted(3, [1.0] * 3)
    for client_id in (0, 1):
        bound.record(client_id, 1e30, accepted=False)
        bound.record(client_id, 1.0, accepted=True)
    assert bound.bound(FIRST) == 20


def test_a_median_of_zero_is_no_scale() -> None:
    bound = with_accepted(3, [0.0] * 3)
    assert bound.bound(FIRST) == FIRST


def test_only_the_clients_that_reported_last_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "VOTERS_MAX", 3)
    bound = with_accepted(9, [1.0, 1.0, 1.0])
    for client_id in (3, 4):
        bound.record(client_id, 5.0, accepted=True)
    assert bound.bound(inf) == 100  # of 1, 5 and 5


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_fewer_than_half_of_the_clients_cannot_move_the_bound_beyond_the_honest_norms(data: st.DataObject) -> None:
    clients = data.draw(st.integers(3, 12))
    attackers = data.draw(st.integers(0, (clients - 1) // 2))
    bound = with_accepted(clients, [data.draw(st.floats(1, 4)) for _ in range(clients)])
    for _ in range(data.draw(st.integers(0, 30))):
        client_id = data.draw(st.integers(0, clients - 1))
        honest = client_id >= attackers
        norm = data.draw(st.floats(1, 4) if honest else st.floats(0, 1e18))
        allowed = bound.allows(client_id, norm, FIRST)
        assert allowed or not honest  # no honest update is refused
        bound.record(client_id, norm, accepted=allowed)
        assert 20 * 0.99**30 <= bound.bound(FIRST) <= 80


reports = st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1e6), st.booleans()), max_size=40)


@settings(max_examples=100, deadline=None)
@given(reports, reports)
def test_a_state_continues_to_the_bit(
    before: list[tuple[int, float, bool]], after: list[tuple[int, float, bool]]
) -> None:
    def report(to: NormBounds, reports: list[tuple[int, float, bool]]) -> None:
        for version, (client_id, norm, accepted) in enumerate(reports):
            to.judged(client_id, version, Norms(norm, norm / 3, None), accepted=accepted)

    lived, resumed = NormBounds("adaptive", clients=5), NormBounds("adaptive", clients=5)
    report(lived, before)
    resumed.load_state_dict(lived.state_dict())
    for one in (lived, resumed):
        report(one, after)
    assert resumed.state_dict() == lived.state_dict()
    assert resumed.bounds(0.5) == lived.bounds(0.5)


def five_alike(norm_max: bounds.NormMax) -> NormBounds:
    made = NormBounds(norm_max, clients=5, model_norm=2.0)
    for client_id in range(5):
        made.judged(client_id, 0, Norms(1.0, 2.0, 0.5), accepted=True)
    return made


@pytest.mark.parametrize(("norm_max", "update"), [("adaptive", 20.0), (7.0, 7.0)])
def test_every_vector_has_a_bound_of_its_own(norm_max: bounds.NormMax, update: float) -> None:
    made = five_alike(norm_max)
    assert made.bounds(0.1) == Norms(update, 400 * 2.0, 20.0)
    fits = made.bounds(0.1)
    assert made.allow(0, fits, 0.1)
    for longer in (fits._replace(update=1e3), fits._replace(buffers=801.0), fits._replace(extra=1e15)):
        assert not made.allow(0, longer, 0.1)


def test_without_a_bound_every_norm_is_accepted() -> None:
    assert five_alike(None).allow(0, Norms(1e18, 1e18, 1e18), 0.1)


def test_the_first_updates_move_the_model_by_no_more_than_ten_times_its_norm() -> None:
    made = NormBounds("adaptive", clients=5, model_norm=2.0)
    assert made.bounds(0.1).update == 10 * 2 / 0.1
    assert NormBounds("adaptive", clients=5, model_norm=0.0).bounds(0.1).update == 10 / 0.1


def test_the_cause_names_the_update_longest_relative_to_its_time() -> None:
    made = five_alike(None)
    assert made.cause is None
    made.judged(3, 12, Norms(1e16), accepted=True)
    made.judged(4, 13, Norms(20.0), accepted=True)
    made.judged(4, 13, Norms(1e17), accepted=False)
    assert made.cause == (
        "the update of client 3 from version 12 had norm 1e+16, 1e+16 times the median then: go back with `unstale "
        "rollback RUN --to 12 --without 3`, or lower training.learning_rate"
    )
