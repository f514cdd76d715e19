"""The screen against the exact test that it stands for."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from unstale.learner import screen

LARGEST = torch.finfo(torch.float32).max


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 500, 1000])
def test_one_bad_number_anywhere_is_found(bad: float, place: int) -> None:
    vector_d = torch.ones(1001)
    vector_d[place] = bad
    assert screen.defect(vector_d) == "non-finite"


def test_infinities_that_cancel_are_found() -> None:
    assert screen.defect(torch.tensor([math.inf, -math.inf])) == "non-finite"


def test_finite_numbers_whose_sum_overflows_are_fine() -> None:
    assert screen.defect(torch.full((1000,), LARGEST)) is None


def test_an_infinity_among_numbers_whose_sum_overflows_is_found() -> None:
    vector_d = torch.full((1000,), LARGEST)
    vector_d[999] = math.inf
    assert screen.defect(vector_d) == "non-finite"


@settings(max_examples=100, deadline=None)
@given(numpy_strategies.arrays(np.float32, st.integers(1, 70), elements=st.floats(width=32)))
def test_the_screen_agrees_with_looking_at_every_number(numbers: np.ndarray) -> None:
    finite = bool(np.isfinite(numbers).all())
    assert screen.defect(torch.from_numpy(numbers.copy())) == (None if finite else "non-finite")
