"""Scalar weights by hand, and the weighted sum against a loop."""

import math

import pytest
import torch

from unstale.policies import weights


def float64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_normalised_weights_are_shares_of_the_sum() -> None:
    assert weights.normalise(float64(1.0, 3.0)).tolist() == [1 / 4, 3 / 4]


@pytest.mark.parametrize("raw", [(0.0, 0.0), (math.inf, 1.0), (math.nan, 1.0)])
def test_weights_without_a_usable_sum_become_uniform(raw: tuple[float, float]) -> None:
    assert weights.normalise(float64(*raw)).tolist() == [0.5, 0.5]


def test_no_updates_have_no_weights() -> None:
    assert weights.normalise(float64()).tolist() == []
    assert weights.uniform(0).tolist() == []


def test_polynomial_weights_fall_with_a_power_of_the_age() -> None:
    assert weights.polynomial(torch.tensor([0, 3]), 0.5).tolist() == [1.0, 1 / 2]


def test_exponential_weights_fall_by_e_halves_a_round() -> None:
    torch.testing.assert_close(
        weights.exponential(torch.tensor([0, 1, 2])), float64(1.0, 2 / math.e, (2 / math.e) ** 2)
    )


def test_exponential_weights_end_at_zero() -> None:
    assert weights.exponential(torch.tensor([2428, 2429]))[0] > 0
    assert weights.exponential(torch.tensor([2428, 2429]))[1] == 0


def test_example_weights_are_shares_of_the_examples() -> None:
    assert weights.examples(torch.tensor([10, 30])).tolist() == [1 / 4, 3 / 4]


def test_the_weighted_sum_adds_rows_times_weights() -> None:
    matrix_Kd = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    assert weights.weighted_sum(matrix_Kd, float64(0.5, 0.25)).tolist() == [
        1.0 * 0.5 + 4.0 * 0.25,
        2.0 * 0.5 + 8.0 * 0.25,
    ]


def test_the_weighted_sum_of_no_rows_is_zero() -> None:
    assert weights.weighted_sum(torch.empty(0, 3), float64()).tolist() == [0.0, 0.0, 0.0]


def test_the_weighted_sum_builds_no_graph() -> None:
    matrix_Kd = torch.ones(2, 3, requires_grad=True)
    assert not weights.weighted_sum(matrix_Kd, float64(1.0, 1.0)).requires_grad
