"""Names of metrics that clients choose, and their values as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstale.metrics.named import NameCounts, common_names, formatted
from unstale.training.measured import MainMetric

MAE = MainMetric("mae", higher_is_better=False)


@given(st.lists(st.tuples(st.integers(0, 30), st.frozensets(st.sampled_from("abcdef"))), max_size=60))
def test_a_name_is_common_if_more_than_a_tenth_of_the_last_reports_have_it(
    reports: list[tuple[int, frozenset[str]]],
) -> None:
    counts, last = NameCounts(), dict[int, frozenset[str]]()
    for client_id, names in reports:
        counts.report(client_id, names)
        last[client_id] = names
        common = {name for name in "abcdef" if 10 * sum(name in names for names in last.values()) > len(last)}
        assert {name for name in "abcdef" if counts.is_common(name)} == common
        assert set(common_names(last.values(), MAE)) == common


def test_fewer_than_330_names_are_common_whatever_clients_report() -> None:
    # 109 clients in groups of 11, which is more than a tenth, each with 33 names of its own: 9 groups, and 10 clients.
    reported = [[f"{number // 11}.{name}" for name in range(33)] for number in range(109)]
    assert len(common_names(reported, MAE)) == 9 * 33
    assert len(common_names(reported[:9], MAE)) == 33
    assert len(common_names([[f"{number}.{name}" for name in range(33)] for number in range(9)], MAE)) == 9 * 33


def test_the_main_metric_is_common_and_first() -> None:
    assert common_names([["loss"]] * 19 + [["mae"]], MAE) == ["mae", "loss"]
    assert common_names([["loss"]] * 20, MAE) == ["loss"]
    assert common_names([], MAE) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5000"), (-1e14, "-100000000000000.0000"), (1e200, "1e+200"), (-1.23456e15, "-1.235e+15")],
)
def test_a_number_of_many_digits_has_an_exponent(value: float, text: str) -> None:
    assert formatted(value, ".4f") == text
