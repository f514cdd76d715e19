"""Metrics over clients, by hand, and as laws.

Source: docs/methods/measures.md#metrics-over-clients
"""

from math import fsum, inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstale.metrics.spread import ClientValue, Report, Spread, means, report_mean, report_means, spreads
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
    (found,) = spreads(reports("f1", (0.0, 4), (0.5, 91)), ACCURACY).values()
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


def test_a_client_weighs_at_most_five_medians_of_the_examples() -> None:
    # The median of 10, 20, 30, 10**15 is 30, of two the larger: weights 10, 20, 30, 150 of 210.
    found = spreads(reports("mae", (1.0, 10), (2.0, 20), (3.0, 30), (9.0, 10**15)), MAE)["mae"]
    assert found.mean == pytest.approx((10 * 1 + 20 * 2 + 30 * 3 + 150 * 9) / 210)
    assert (found.p10, found.p50, found.p90) == (2.0, 9.0, 9.0)  # 10 % are reached at 30, 50 % at 210
    assert found.highest == ClientValue(3, 9.0)


def test_the_median_of_the_examples_is_that_of_the_clients_with_this_metric() -> None:
    many = [Report(client_id, 10**9, {"loss": 1.0}) for client_id in range(5)]
    few = [Report(5 + number, examples, {"mae": 1.0 * number}) for number, examples in enumerate((1, 1, 100))]
    assert report_mean("mae", [*many, *few]) == pytest.approx((1 * 1 + 5 * 2) / 7)


@given(st.lists(st.tuples(st.floats(-1, 1), st.integers(100, 500)), min_size=1))
def test_weights_within_a_factor_of_five_are_the_examples_to_the_last_bit(pairs: list[tuple[float, int]]) -> None:
    total = sum(examples for _, examples in pairs)
    assert report_mean("mae", reports("mae", *pairs)) == fsum(value * (weight / total) for value, weight in pairs)


@given(
    honest=st.lists(st.tuples(st.floats(0, 1), st.integers(100, 110)), min_size=9, max_size=27),
    value=st.floats(allow_nan=False, allow_infinity=False),
    examples=st.integers(1, 2**63 - 1),
)
def test_a_tenth_of_the_clients_does_not_move_the_median_out_of_the_others(
    honest: list[tuple[float, int]], value: float, examples: int
) -> None:
    hostile = [(value, examples)] * (len(honest) // 9)
    found = spreads(reports("mae", *honest, *hostile), MAE)["mae"]
    values = [value for value, _ in honest]
    assert min(values) <= found.p50 <= max(values)
    share = 5 * 110 * len(hostile) / (5 * 110 * len(hostile) + 100 * len(honest))
    assert abs(found.mean) <= max(values) + share * 1e6


def test_a_value_above_a_million_medians_is_not_in_the_mean_but_is_the_worst() -> None:
    found = spreads(reports("mae", (1.0, 10), (2.0, 10), (3.0, 10), (1e200, 10)), MAE)["mae"]
    assert (found.reports, found.mean, found.p50) == (4, pytest.approx(2.0), 2.0)
    assert found.worst == ClientValue(3, 1e200)
    # The median of the magnitudes is 3, of two the larger.
    assert report_mean("mae", reports("mae", (1.0, 1), (2.0, 1), (3.0, 1), (3e6, 1))) == pytest.approx(3000006 / 4)
    # Below 1 the bound is a million: where most clients have 0, others count.
    assert report_mean("mae", reports("mae", (0.0, 1), (0.0, 1), (0.0, 1), (-1e6, 1))) == -250000.0
    assert report_mean("mae", reports("mae", (0.0, 1), (0.0, 1), (0.0, 1), (-1.1e6, 1))) == 0.0
    assert report_mean("mae", reports("mae", (1e300, 1), (2e300, 1))) == pytest.approx(1.5e300)


def test_names_of_a_tenth_of_the_clients_have_no_spread() -> None:
    honest = [Report(client_id, 1, {"loss": 1.0, "r2": 0.5}) for client_id in range(18)]
    hostile = [Report(18 + number, 1, {"loss": 1.0, **{f"m{name}": 9.0 for name in range(31)}}) for number in range(2)]
    assert list(spreads([*honest, *hostile], MAE)) == ["loss", "r2"]
    assert list(spreads([*honest[:17], *hostile], MAE))[:3] == ["loss", "r2", "m0"]  # two of 19 are more than a tenth
    assert list(spreads([*honest, Report(18, 1, {"mae": 1.0})], MAE)) == ["mae", "loss", "r2"]  # the main one always


@given(
    st.lists(
        st.tuples(st.dictionaries(st.sampled_from(["mae", "r2", "f1"]), st.floats()), st.integers(1, 10**6)),
        max_size=30,
    )
)
def test_means_alone_are_those_of_the_spreads(pairs: list[tuple[dict[str, float], int]]) -> None:
    found = [Report(client_id, examples, metrics) for client_id, (metrics, examples) in enumerate(pairs)]
    assert report_means(found, MAE) == means(spreads(found, MAE))
    assert report_mean("mae", found) == means(spreads(found, MAE)).get("mae")


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
