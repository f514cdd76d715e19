"""Means over runs, intervals and mean curves, computed by hand."""

from math import isnan, nan, sqrt

import numpy as np
import pytest

from unstale.report.statistics import jain, over_time, over_versions, spread

T_2 = 0.95 / sqrt(
    2 * 0.975 * 0.025
)  # Student's t at p = 97.5 % and 2 degrees of freedom: (2 p - 1) / sqrt(2 p (1 - p))


def test_three_values_have_students_interval() -> None:
    assert pytest.approx(4.3027, abs=5e-5) == T_2  # as in every table
    found = spread([1.0, 2.0, 3.0])  # mean 2, standard deviation 1
    assert (found.n, found.mean, found.std) == (3, 2.0, 1.0)
    assert found.low == pytest.approx(2 - T_2 / sqrt(3), rel=1e-9)
    assert found.high == pytest.approx(2 + T_2 / sqrt(3), rel=1e-9)


def test_one_value_has_a_mean_without_interval() -> None:
    one = spread([0.5])
    assert one.mean == 0.5
    assert isnan(one.std) and isnan(one.low) and isnan(one.high)
    assert isnan(spread([]).mean)


def test_nan_propagates_through_means() -> None:
    assert isnan(spread([1.0, nan]).mean)


def series(at: list[int], values: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(at), np.array(values)


def test_curves_are_compared_at_common_versions() -> None:
    found = over_versions([series([0, 5, 10], [0.0, 0.5, 1.0]), series([0, 10, 20], [0.2, 0.8, 0.9])])
    assert found.at_x.tolist() == [0, 10]
    assert found.mean_x == pytest.approx([0.1, 0.9])
    assert found.left_out == 2  # version 5 of the one and 20 of the other
    # Two values a and b: standard deviation |a - b| / sqrt 2, so t * |a - b| / 2; t is 12.706 with 1 degree of freedom.
    assert found.high_x - found.mean_x == pytest.approx([12.706204736 * 0.1] * 2)


def test_a_single_curve_has_no_band() -> None:
    found = over_versions([series([0, 1], [0.25, 0.5])])
    assert found.mean_x.tolist() == [0.25, 0.5]
    assert np.isnan(found.low_x).all() and found.left_out == 0


def test_over_time_uses_the_latest_measurements() -> None:
    found = over_time([series([0, 4, 8], [0.0, 0.4, 0.8]), series([1, 5], [0.2, 0.6])])
    # From 1 s, when both are measured, to 5 s, when the second ends: at 1, 4 and 5 s.
    assert found.at_x.tolist() == [1, 4, 5]
    assert found.mean_x == pytest.approx([(0.0 + 0.2) / 2, (0.4 + 0.2) / 2, (0.4 + 0.6) / 2])
    assert found.left_out == 1  # at 8 s


def test_curves_without_common_versions_are_empty() -> None:
    assert len(over_versions([series([0], [1.0]), series([1], [1.0])]).at_x) == 0
    assert len(over_time([series([0, 1], [0.0, 1.0]), series([2, 3], [0.0, 1.0])]).at_x) == 0


@pytest.mark.parametrize(("shares", "evenness"), [([1, 1, 1, 1], 1.0), ([4, 0, 0, 0], 0.25), ([1, 3], 16 / 20)])
def test_evenness_is_jains_index(shares: list[float], evenness: float) -> None:
    assert jain(shares) == pytest.approx(evenness)
    assert isnan(jain([0.0, 0.0]))
