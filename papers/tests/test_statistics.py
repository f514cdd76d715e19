"""Means, tests and orders over seeds, by hand and against scipy."""

from math import atan, inf, nan, pi, sqrt

import pytest
from scipy.stats import ttest_rel

from unstale_papers.record import Record
from unstale_papers.statistics import kendall, over_rounds, over_seeds, ranks, t_test

T_2 = 0.95 / sqrt(2 * 0.975 * 0.025)  # Student's t at 97.5 % and 2 degrees of freedom: (2 p - 1) / sqrt(2 p (1 - p))


def curve(*accuracies: float, start: int = 0) -> Record:
    return Record(version_E=list(range(start, start + len(accuracies))), accuracy_E=list(accuracies))


def test_three_seeds_give_a_mean_a_deviation_and_students_interval() -> None:
    found = over_seeds([1.0, 2.0, 3.0])
    assert found is not None
    assert (found.n, found.mean, found.std) == (3, 2.0, 1.0)
    assert found.low == pytest.approx(2 - T_2 / sqrt(3))
    assert found.high == pytest.approx(2 + T_2 / sqrt(3))


def test_one_seed_gives_a_mean_and_no_spread() -> None:
    found = over_seeds([0.5])
    assert found is not None
    assert (found.n, found.mean) == (1, 0.5)
    assert found.std is found.low is found.high is None


@pytest.mark.parametrize("values", [[], [0.5, nan], [inf, 0.5]])
def test_missing_seeds_or_numbers_give_no_mean(values: list[float]) -> None:
    assert over_seeds(values) is None


def test_two_differences_by_hand() -> None:
    # Differences 1 and 3: mean 2, sd sqrt(2), t = 2 / (sqrt(2) / sqrt(2)) = 2. With one degree of freedom Student's
    # distribution is Cauchy's: p = 2 (1/2 - atan(t) / pi).
    found = t_test([1.0, 3.0])
    assert found is not None
    assert (found.n, found.mean) == (2, 2.0)
    assert found.t == pytest.approx(2)
    assert found.p == pytest.approx(1 - 2 * atan(2) / pi)


def test_three_differences_by_hand() -> None:
    # Differences 1, 2, 3 against 1: mean 2, sd 1, t = sqrt(3). With two degrees of freedom P(T > t) is
    # 1/2 - t / (2 sqrt(2 + t^2)), so p = 1 - sqrt(3 / 5).
    found = t_test([1.0, 2.0, 3.0], against=1.0)
    assert found is not None
    assert found.t == pytest.approx(sqrt(3))
    assert found.p == pytest.approx(1 - sqrt(3 / 5))


def test_the_test_equals_scipys_paired_test() -> None:
    ours, theirs = [0.51, 0.55, 0.49, 0.60], [0.50, 0.51, 0.50, 0.55]
    found = t_test([a - b for a, b in zip(ours, theirs, strict=True)])
    assert found is not None
    oracle = ttest_rel(ours, theirs)
    assert (found.t, found.p) == pytest.approx((oracle.statistic, oracle.pvalue))


def test_equal_differences_give_p_zero_and_zero_differences_no_test() -> None:
    found = t_test([-0.1] * 3)
    assert found is not None
    assert (found.mean, found.t, found.p) == (-0.1, -inf, 0.0)
    assert t_test([0.0, 0.0]) is None
    assert t_test([0.1] * 3, against=0.1) is None


@pytest.mark.parametrize("differences", [[], [1.0], [1.0, nan]])
def test_values_without_spread_are_not_tested(differences: list[float]) -> None:
    assert t_test(differences) is None


def test_rounds_of_all_seeds_are_paired_at_common_versions() -> None:
    # Version 0 belongs to no round. Versions 1 and 2 of the first seed: 0.3 - 0.2, 0.5 - 0.2. In the second they share
    # only version 2: 0.6 - 0.4. Further versions have no partner.
    found = over_rounds(
        [(curve(0.1, 0.3, 0.5), curve(0.9, 0.2, 0.2, 0.8)), (curve(0.0, 0.1, 0.6), curve(0.4, 0.5, start=2))]
    )
    by_hand = t_test([0.1, 0.3, 0.2])
    assert found is not None and by_hand is not None
    assert found.n == 3
    assert (found.mean, found.t, found.p) == pytest.approx((by_hand.mean, by_hand.t, by_hand.p))


def test_without_common_rounds_there_is_no_test() -> None:
    assert over_rounds([]) is None
    assert over_rounds([(Record(), curve(0.1, 0.2))]) is None


def test_equal_orders_have_tau_1_and_reversed_orders_minus_1() -> None:
    # Among 4! = 24 orders one agrees fully and one is the reverse: p = 2 / 24.
    for measured, tau in (([1, 2, 3, 4], 1.0), ([4, 3, 2, 1], -1.0)):
        found = kendall([10, 20, 30, 40], measured)
        assert found is not None
        assert (found.n, found.ties) == (4, False)
        assert found.tau == pytest.approx(tau)
        assert found.p == pytest.approx(2 / 24)


def test_an_order_with_one_swap_by_hand() -> None:
    # Of the three pairs two agree: tau = (2 - 1) / 3. All 6 orders are at least as far from 0.
    found = kendall([1, 2, 3], [2, 1, 3])
    assert found is not None
    assert found.tau == pytest.approx(1 / 3)
    assert found.p == pytest.approx(1)
    assert found.text == "tau 0.33 of 3 methods, p = 1"


def test_ties_enter_the_divisor_and_give_no_exact_p() -> None:
    # Two pairs agree, one is tied here: 2 / sqrt(3 * 2).
    found = kendall([1, 2, 3], [1, 1, 2])
    assert found is not None
    assert found.tau == pytest.approx(2 / sqrt(6))
    assert found.ties and found.p is None
    assert found.text == "tau 0.82 of 3 methods, ties, so no exact p"


def test_two_methods_or_only_ties_have_no_tau() -> None:
    assert kendall([], []) is None
    assert kendall([1, 2], [1, 2]) is None
    assert kendall([1, 2, 3], [5, 5, 5]) is None


def test_tied_values_share_a_rank() -> None:
    assert ranks([(0.0, 3.0), (0.0, 1.0), (0.5, 0.0), (0.0, 3.0)]) == [1, 0, 2, 1]
