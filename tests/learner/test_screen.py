"""The screen against the exact test that it replaces."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from unstale.learner import row_checks
from unstale.learner.row_checks import Layout, Norms
from unstale.training.local import Kind

LARGEST = torch.finfo(torch.float32).max


def defect(vector_d: torch.Tensor, kind: Kind = "delta", *, zero_deltas: bool = False) -> str | None:
    return row_defect(vector_d, len(vector_d), kind, zero_deltas=zero_deltas)


def row_defect(row_D: torch.Tensor, dimension: int, kind: Kind = "delta", *, zero_deltas: bool = False) -> str | None:
    behind = len(row_D) - dimension
    return row_checks.defect(row_checks.norms(row_D.numpy(), Layout(dimension, behind)), kind, zero_deltas=zero_deltas)


def norm(vector_d: torch.Tensor) -> float:
    return row_checks.norm(vector_d.numpy())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 500, 1000])
def test_one_non_finite_number_anywhere_is_detected(bad: float, place: int) -> None:
    vector_d = torch.ones(1001)
    vector_d[place] = bad
    assert defect(vector_d) == "non-finite"


def test_infinities_that_cancel_are_detected() -> None:
    assert defect(torch.tensor([math.inf, -math.inf])) == "non-finite"


def test_numbers_whose_sum_of_squares_overflows_float32_are_refused() -> None:
    assert defect(torch.full((1000,), LARGEST)) == "non-finite"
    assert defect(torch.tensor([1e20, 0.0])) == "non-finite"
    assert defect(torch.tensor([1.8e19, 0.0])) is None  # 3.24e38 of at most 3.40e38


ZEROS = [torch.zeros(7), torch.tensor([0.0, -0.0])]


@pytest.mark.parametrize("zeros_d", ZEROS)
def test_a_delta_of_zeros_is_refused(zeros_d: torch.Tensor) -> None:
    assert defect(zeros_d, "delta") == "zero-update"
    assert defect(zeros_d, "delta", zero_deltas=True) is None
    assert row_defect(torch.cat([zeros_d, torch.ones(2)]), len(zeros_d)) == "zero-update"


@pytest.mark.parametrize("zeros_d", ZEROS)
def test_a_gradient_may_be_zero(zeros_d: torch.Tensor) -> None:
    assert defect(zeros_d, "gradient") is None
    assert row_defect(zeros_d, len(zeros_d), kind="gradient") is None
    assert row_defect(torch.cat([zeros_d, torch.zeros(2)]), len(zeros_d), kind="gradient") is None
    assert row_defect(torch.cat([zeros_d, torch.tensor([math.nan])]), len(zeros_d), kind="gradient") == "non-finite"


def test_numbers_whose_squares_underflow_are_a_valid_update() -> None:
    vector_d = torch.zeros(1001)
    vector_d[500] = 1e-30
    assert defect(vector_d) is None


def test_numbers_behind_the_update_may_be_zero_but_must_be_finite() -> None:
    # d = 2 numbers of the update, then buffers and a second vector.
    for behind in ([0.0, 0.0], [1e18, -1e18]):
        assert row_defect(torch.tensor([1.0, 2.0, *behind]), 2) is None
    for bad in (math.nan, math.inf, -math.inf, 1e20, LARGEST):
        assert row_defect(torch.tensor([1.0, 2.0, 0.0, bad]), 2) == "non-finite"
    assert row_defect(torch.tensor([0.0, 0.0, 5.0]), 2) == "zero-update"
    assert row_defect(torch.tensor([1.0, 2.0]), 2) is None


@settings(max_examples=100, deadline=None)
@given(
    numpy_strategies.arrays(np.float32, st.integers(1, 70), elements=st.floats(width=32)),
    st.sampled_from(get_args(Kind)),
)
def test_the_screen_agrees_with_a_check_of_every_number(numbers: np.ndarray, kind: Kind) -> None:
    square = float(np.square(numbers.astype(np.float64)).sum())
    if abs(square - LARGEST) < 1e-3 * LARGEST:
        return  # so near the largest float32 that the order of the sum decides
    expected = None if numbers.any() or kind == "gradient" else "zero-update"
    if not square < LARGEST:  # also NaN
        expected = "non-finite"
    assert defect(torch.from_numpy(numbers.copy()), kind) == expected


def test_each_vector_of_a_row_has_a_norm_of_its_own() -> None:
    row_D = np.array([3, 4, 5, 12, 8, 15], dtype=np.float32)
    assert row_checks.norms(row_D, Layout(2, buffers=2, extra=2)) == Norms(update=5, buffers=13, extra=17)
    assert row_checks.norms(row_D[:4], Layout(2, extra=2)) == Norms(update=5, buffers=None, extra=13)
    assert row_checks.norms(row_D[:2], Layout(2)) == Norms(update=5, buffers=None, extra=None)


@pytest.mark.parametrize("place", [1, 2])
def test_each_number_of_every_vector_must_be_finite(place: int) -> None:
    row_D = np.ones(3, dtype=np.float32)
    row_D[place] = math.nan
    norms = row_checks.norms(row_D, Layout(1, buffers=1, extra=1))
    assert row_checks.defect(norms, "delta") == "non-finite"


def test_the_norm_is_accumulated_over_blocks_in_float64() -> None:
    # One number of 4096 and 16.8 million of 1: each 1 would vanish beside 4096 ** 2 = 2 ** 24 in float32, as it may
    # in the block of the 4096.
    numbers = 2**24
    vector_d = torch.ones(numbers + 1)
    vector_d[0] = 4096.0
    assert norm(vector_d) == pytest.approx(math.sqrt(2**24 + numbers), rel=2**-12)
    assert norm(torch.tensor([1e-30])) == pytest.approx(1e-30, rel=1e-6)  # its square is no float32
