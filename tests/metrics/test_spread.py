"""Metrics over clients, by hand, and as laws.

Source: docs/methods/measures.md#metrics-over-clients
"""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstale.metrics.spread import ClientValue, Report, Spread, means, spreads
from unstale.training.measured import MainMetric

ACCURACY = MainMetric("accuracy", higher_is_better=True)
MAE = MainMetric("mae", higher_is_better=False)


def reports(name: str, *pairs: tuple[float, int]) -> list[Report]:
    return [Report(client_id, examples, {name: value}) for client_id, (value, examples) in enumerate(pairs)]


def test_three_clients_by_hand() -> None:
    # Sorted: 0.25 (30 examples), 0.5 (60), 1.0 (10), of 100. 10 % are reached at 30, 50 % at 90, 90 % at 90.
    # Mean 0.25 * 0.3 + 0.5 * 0.6 + 1.0 * 0.1 = 0.075 + 0.3 + 0.1.
    found = spreads(reports("mae", (1.0, 10), (0.25, 30), (0.5, 60)), MAE)
    assert found == {
        "mae": Spread(
            reports=3,
            mean=pytest.approx(0.475),
            p10=0.25,
            p50=0.5,
            p90=0.5,
            lowest=ClientValue(1, 0.25),
            highest=ClientValue(0, 1.0),
            worst=ClientValue(0, 1.0),  # less is better
        )
    }


def test_a_client_with_most_of_the_examples_is_all_percentiles() -> None:
    (found,) = spreads(reports("f1", (0.0, 4), (0.5, 91), (1.0, 5)), ACCURACY).values()
    assert (found.p10, found.p50, found.p90) == (0.5, 0.5, 0.5)
    assert found.worst is None  # whether more of it is better is not known


def test_the_worst_client_has_the_least_of_a_metric_of_which_more_is_better() -> None:
    found = spreads(reports("accuracy", (0.9, 1), (0.3, 1)), ACCURACY)
    assert found["accuracy"].worst == ClientValue(1, 0.3)


def test_the_main_metric_is_first_and_each_metric_is_of_the_clients_that_have_it() -> None:
    found = spreads([Report(7, 2, {"loss": 1.0, "mae": 0.5}), Report(8, 6, {"loss": 3.0, "r2": 0.1})], MAE)
    assert list(found) == ["mae", "loss", "r2"]
    assert means(found) == {"mae": 0.5, "loss": (2 * 1.0 + 6 * 3.0) / 8, "r2": 0.1}
    assert [spread.reports for spread in found.values()] == [1, 2, 1]


def test_what_is_not_finite_is_left_out() -> None:
    found = spreads(reports("mae", (nan, 5), (0.5, 5), (inf, 5)), MAE)
    assert (found["mae"].reports, found["mae"].mean) == (1, 0.5)
    assert spreads(reports("mae", (nan, 5)), MAE) == {}
    assert spreads([], MAE) == {}


@given(st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 2**63 - 1)), min_size=1))
def test_percentiles_rise_and_stay_with_the_mean_between_the_extremes(pairs: list[tuple[float, int]]) -> None:
    (found,) = spreads(reports("mae", *pairs), MAE).values()
    assert found.lowest.value <= found.p10 <= found.p50 <= found.p90 <= found.highest.value
    room = 1e-9 * max(abs(found.lowest.value), abs(found.highest.value))
    assert found.lowest.value - room <= found.mean <= found.highest.value + room


@given(st.lists(st.tuples(st.integers(-8, 8), st.integers(1, 5)), min_size=1), st.integers(1, 4))
def test_a_client_with_so_many_examples_counts_as_so_many_clients_with_one(
    pairs: list[tuple[int, int]], times: int
) -> None:
    (weighted,) = spreads(reports("mae", *[(value, times * count) for value, count in pairs]), MAE).values()
    (alone,) = spreads(reports("mae", *[(value, 1) for value, count in pairs for _ in range(count)]), MAE).values()
    assert (weighted.p10, weighted.p50, weighted.p90) == (alone.p10, alone.p50, alone.p90)
    assert weighted.mean == pytest.approx(alone.mean)


def test_values_near_the_largest_float_have_a_mean() -> None:
    largest = 1.7976931348623157e308
    spread = spreads(reports("mae", (largest, 10), (largest, 84), (largest, 76)), MAE)["mae"]
    assert spread.mean == pytest.approx(largest)
    mixed = spreads(reports("mae", (largest, 1), (-largest, 1), (largest, 1), (-largest, 1)), MAE)["mae"]
    assert mixed.mean == 0
