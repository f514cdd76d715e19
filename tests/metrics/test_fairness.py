"""Fairness over the clients, by hand, and the times of client evaluations.

Source: docs/methods/measures.md#fairness-over-clients
"""

from math import isnan, sqrt

import pytest

from unstale.metrics.fairness import Fairness, FromAnswers, OwnEvaluations


def fairness_of(*accuracies: float) -> Fairness:
    own = OwnEvaluations(1)
    for client_id, accuracy in enumerate(accuracies):
        own.answered(client_id, 1 + client_id, {"accuracy": accuracy})
    fairness = own.fairness
    assert fairness is not None
    return fairness


def test_without_answers_there_is_no_fairness() -> None:
    assert OwnEvaluations(1).fairness is None


def test_the_spread_over_four_clients_by_hand() -> None:
    # Mean (0.2 + 0.4 + 0.6 + 0.8) / 4; squares of the differences 0.09, 0.01, 0.01, 0.09.
    found = fairness_of(0.8, 0.2, 0.6, 0.4)
    assert found.clients == 4
    assert found.mean == pytest.approx(0.5)
    assert found.std == pytest.approx(sqrt(0.20 / 3))
    assert found.variance == pytest.approx(0.20 / 4)
    # A tenth of 4 clients is, rounded up, 1.
    assert (found.worst_tenth, found.best_tenth) == (0.2, 0.8)
    assert isnan(found.worst_tenth_std) and isnan(found.best_tenth_std)


def test_the_published_mix_of_variance_with_n_and_deviation_with_n_minus_1() -> None:
    # 100 clients, half of them d above the mean and half below: the variance with n is d^2, and the deviation with
    # n - 1 is d * sqrt(100 / 99). The published rows, in percentage points, are below.
    for variance, deviation in ((325.0, 18.1), (182.5, 13.6), (321.6, 18.0)):
        d = sqrt(variance) / 100
        found = fairness_of(*[0.5 - d, 0.5 + d] * 50)
        assert found.variance * 100**2 == pytest.approx(variance)
        assert found.std * 100 == pytest.approx(deviation, abs=0.05)
        assert found.std > sqrt(found.variance)


def test_the_worst_tenth_of_eleven_clients_is_two_with_a_deviation_of_their_own() -> None:
    found = fairness_of(0.1, 0.3, *[0.5] * 7, 0.8, 1.0)
    assert found.worst_tenth == pytest.approx(0.2)
    assert found.best_tenth == pytest.approx(0.9)
    assert found.worst_tenth_std == pytest.approx(sqrt(2 * 0.1**2))
    assert found.best_tenth_std == pytest.approx(sqrt(2 * 0.1**2))


def test_the_worst_tenth_of_ten_clients_is_one_without_a_deviation() -> None:
    assert fairness_of(*[0.0] * 9, 1.0).best_tenth == 1.0
    alone = fairness_of(0.7)
    assert (alone.mean, alone.variance, alone.worst_tenth, alone.best_tenth) == (0.7, 0.0, 0.7, 0.7)
    assert isnan(alone.std)


def test_only_the_last_answer_of_a_client_counts() -> None:
    own = OwnEvaluations(1)
    own.answered(0, 1, {"accuracy": 0.1})
    own.answered(1, 2, {"accuracy": 0.3})
    own.answered(0, 3, {"accuracy": 0.5})
    assert own.fairness is not None
    assert (own.fairness.clients, own.fairness.mean) == (2, pytest.approx(0.4))
    assert (own.fairness.oldest_version, own.fairness.newest_version) == (2, 3)


def test_an_evaluation_that_was_not_requested_does_not_count() -> None:
    unasked, own = OwnEvaluations(None), OwnEvaluations(10)
    unasked.answered(0, 50, {"accuracy": 1.0})
    own.answered(0, 9, {"accuracy": 1.0})
    assert unasked.fairness is None
    assert own.fairness is None


def test_no_client_is_asked_when_the_evaluation_is_disabled() -> None:
    assert not OwnEvaluations(None).is_wanted(0, 0)


def test_a_client_is_asked_until_it_has_answered_and_again_after_the_next_multiple() -> None:
    own = OwnEvaluations(10)
    assert not own.is_wanted(3, 9)  # the first period is not over
    assert own.is_wanted(3, 10)
    assert own.is_wanted(3, 17)  # no answer yet, so again
    own.answered(3, 17, {"accuracy": 0.5})
    assert [version for version in range(17, 33) if own.is_wanted(3, version)] == list(range(20, 33))
    own.answered(3, 22, {"accuracy": 0.5})
    assert [version for version in range(22, 33) if own.is_wanted(3, version)] == [30, 31, 32]
    assert own.is_wanted(4, 22)  # each client separately


def test_a_slow_client_is_not_asked_twice_for_one_period() -> None:
    own = OwnEvaluations(10)
    own.answered(0, 19, {"accuracy": 0.5})
    assert not own.is_wanted(0, 19)
    assert own.is_wanted(0, 20)


def test_an_accuracy_that_is_no_share_and_no_percentage_does_not_count() -> None:
    answers = OwnEvaluations(1)
    for client_id, accuracy in enumerate((0.25, 0.75, 1e200, -1e200, 101.0)):
        answers.answered(client_id, 1, {"accuracy": accuracy})
    assert answers.fairness is not None
    assert (answers.fairness.clients, answers.fairness.mean) == (2, 0.5)


def test_a_value_of_the_answers_is_computed_when_it_is_read_and_again_only_after_another_answer() -> None:
    own = OwnEvaluations(1)
    counted: list[int] = []

    def number() -> int:
        counted.append(len(own.reports))
        return counted[-1]

    value = FromAnswers(own, number)
    for client_id in range(3):
        own.answered(client_id, 1, {"mae": 0.5})
    assert counted == []
    assert (value(), value()) == (3, 3)
    own.answered(0, 1, {"mae": 0.5})  # the same version again counts once
    assert (value(), counted) == (3, [3])
    own.answered(0, 2, {"mae": 0.25})
    assert (value(), counted) == (3, [3, 3])
