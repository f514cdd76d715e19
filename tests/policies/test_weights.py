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


def test_polynomial_weights_decay_with_a_power_of_the_age() -> None:
    assert weights.polynomial(torch.tensor([0, 3]), 0.5).tolist() == [1.0, 1 / 2]


def test_exponential_weights_decay_by_e_halves_per_round() -> None:
    torch.testing.assert_close(
        weights.exponential(torch.tensor([0, 1, 2])), float64(1.0, 2 / math.e, (2 / math.e) ** 2)
    )


def test_exponential_weights_underflow_to_zero() -> None:
    assert weights.exponential(torch.tensor([2428, 2429]))[0] > 0
    assert weights.exponential(torch.tensor([2428, 2429]))[1] == 0


def test_example_weights_are_proportional_to_the_examples() -> None:
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


def test_halving_weights_halve_every_half_life() -> None:
    assert weights.halving(torch.tensor([0, 20, 40]), 20.0).tolist() == [1.0, 1 / 2, 1 / 4]


def test_only_the_first_row_of_a_requested_client_is_taken() -> None:
    wanted = {1, 2, 3}
    assert weights.first_rows(torch.tensor([0, 2, 2, 1]), wanted) == [1, 3]
    assert wanted == {3}


def test_rows_that_are_not_selected_have_weight_zero() -> None:
    assert weights.on_rows([2, 0], 0.5, 4).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert weights.on_rows([], 1.0, 2).tolist() == [0.0, 0.0]


def test_a_shared_base_model_adds_its_drift_once_and_the_current_model_adds_none() -> None:
    # (1 / 0.5) * ((0.25 + 0.5) * (10 - 6) + 0.25 * (10 - 10))
    direction_d, now_d, base_d = torch.tensor([1.0]), torch.tensor([10.0]), torch.tensor([6.0])
    weights.add_drift(direction_d, now_d, [base_d, now_d, base_d], float64(0.25, 0.25, 0.5), rate=0.5)
    assert direction_d.item() == pytest.approx(1.0 + 0.75 * 4.0 / 0.5)
    weights.add_drift(direction_d, now_d, [now_d], float64(1.0), rate=0.5)
    assert direction_d.item() == pytest.approx(7.0)


@pytest.mark.parametrize(("rows", "columns"), [(3, 100_000), (200_000, 3), (1, 1), (0, 5), (2, 0)])
def test_chunks_cover_all_columns_in_order(rows: int, columns: int) -> None:
    chunks = list(weights.column_chunks(torch.empty(rows, columns)))
    assert [column for chunk in chunks for column in range(columns)[chunk]] == list(range(columns))
    assert all(chunk.stop - chunk.start <= max(2**17 // max(rows, 1), 1) for chunk in chunks)
