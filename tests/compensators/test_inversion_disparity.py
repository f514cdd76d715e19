"""Distances between local updates: values by hand, slopes by finite differences, and invariances."""

import math

import pytest
import torch
from torch import Tensor

from unstale.compensators.inversion.disparity import DISPARITIES, cosine, l1, l2

over_all = pytest.mark.parametrize("name", DISPARITIES)
A = (torch.tensor([[3.0, 0.0], [0.0, 0.0]], dtype=torch.float64), torch.tensor([4.0], dtype=torch.float64))
B = (torch.tensor([[1.0, 2.0], [2.0, 0.0]], dtype=torch.float64), torch.tensor([4.0], dtype=torch.float64))
"""In two parts: a = (3, 0, 0, 0, 4), b = (1, 2, 2, 0, 4), both of length 5; a . b = 19, a - b = (2, -2, -2, 0, 0)."""


def times(factor: float, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(factor * part for part in parts)


def test_the_distances_of_two_vectors_are_those_computed_by_hand() -> None:
    assert float(l1(A, B)) == 6.0
    assert float(l2(A, B)) == pytest.approx(math.sqrt(12), rel=1e-15)
    assert float(cosine(A, B)) == pytest.approx(1 - 19 / 25, rel=1e-15)


@over_all
def test_a_vector_is_at_distance_0_from_itself(name: str) -> None:
    assert float(DISPARITIES[name](A, A)) == pytest.approx(0.0, abs=1e-15)


@over_all
def test_the_slope_is_that_of_finite_differences(name: str) -> None:
    start = tuple((part + 0.125).requires_grad_() for part in A)  # no coordinate of a - b is 0, where L1 has no slope
    assert torch.autograd.gradcheck(lambda *parts: DISPARITIES[name](parts, B), start)


@over_all
def test_the_slope_by_hand(name: str) -> None:
    start = tuple(part.clone().requires_grad_() for part in A)
    first, last = torch.autograd.grad(DISPARITIES[name](start, B), start)
    found = [*first.flatten().tolist(), *last.tolist()]
    expected = {
        "l1": [1, -1, -1, 0, 0],  # signs of a - b
        "l2": [value / math.sqrt(12) for value in (2, -2, -2, 0, 0)],  # (a - b) / |a - b|
        # -(b - (a . b / |a|^2) a) / (|a| |b|) = -(b - 0.76 a) / 25
        "cosine": [-(b - 0.76 * a) / 25 for a, b in zip((3, 0, 0, 0, 4), (1, 2, 2, 0, 4), strict=True)],
    }
    assert found == pytest.approx(expected[name], abs=1e-15)


@over_all
def test_where_the_estimate_equals_the_update_no_slope_is_nan(name: str) -> None:
    start = tuple(part.clone().requires_grad_() for part in A)
    for slope in torch.autograd.grad(DISPARITIES[name](start, A), start):
        assert slope.abs().max() < 1e-15


@pytest.mark.parametrize(("name", "power"), [("l1", 1), ("l2", 1), ("cosine", 0)])
def test_l1_and_l2_are_lengths_and_the_cosine_depends_on_no_length(name: str, power: int) -> None:
    of = DISPARITIES[name]
    assert float(of(times(3.0, A), times(3.0, B))) == pytest.approx(3.0**power * float(of(A, B)), rel=1e-14)
    if name == "cosine":
        assert float(of(times(7.0, A), B)) == pytest.approx(float(of(A, B)), rel=1e-14)


def test_a_vector_of_zeros_has_no_direction() -> None:
    # An inversion goes back from an iterate without a number to the last with one.
    assert math.isnan(float(cosine(times(0.0, A), B)))
