"""Lengths and products in passes, against float64."""

import math

import pytest
import torch

from unstale.policies import pairwise
from unstale.policies.weights import column_chunks

GENERATOR = torch.Generator().manual_seed(3)


@pytest.mark.parametrize("offset", [0.0, 1.0], ids=["no common direction", "one common direction"])
@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("dimension", [7, 62_006, 500_000])
def test_float32_chunks_added_in_float64_are_accurate_to_1e_7_of_the_lengths(
    rows: int, dimension: int, offset: float
) -> None:
    matrix_Kd = torch.randn(rows, dimension, generator=GENERATOR) + offset
    other_d = torch.randn(dimension, generator=GENERATOR) + offset
    along, own = [], []
    for columns in column_chunks(matrix_Kd):
        along.append(torch.mv(matrix_Kd[:, columns], other_d[columns]))
        own.append(pairwise.squares(matrix_Kd[:, columns]))
    lengths_K = matrix_Kd.double().norm(dim=1)
    expected_K = matrix_Kd.double() @ other_d.double()
    error_K = (pairwise.total(along) - expected_K).abs() / (lengths_K * other_d.double().norm())
    assert float(error_K.max()) < 3e-7
    torch.testing.assert_close(pairwise.total(own).sqrt(), lengths_K, atol=0, rtol=3e-7)


def test_inner_is_float64_throughout() -> None:
    first_d, second_d, shift_d = torch.randn(3, 300_000, generator=GENERATOR)
    expected = float((first_d.double() - 0.7 * shift_d.double()) @ second_d.double())
    assert pairwise.inner(first_d, second_d, shift_d=shift_d, alpha=-0.7) == pytest.approx(expected, rel=1e-12)
    assert pairwise.inner(first_d) == pytest.approx(float(first_d.double().square().sum()), rel=1e-12)


@pytest.mark.parametrize("left_over", [1.0, 1e-2, 1e-4, 1e-6])
def test_the_length_of_a_sum_whose_terms_nearly_cancel_keeps_its_digits(left_over: float) -> None:
    """g = -alpha x + a little: from |g|^2 + 2 alpha g.x + alpha^2 |x|^2 nothing would be left at 1e-4."""
    alpha = 0.1
    shift_d = torch.randn(100_000, generator=GENERATOR)
    g_d = (-alpha * shift_d.double() + left_over * torch.randn(100_000, generator=GENERATOR)).float()
    lengths_K, directly = pairwise.fused_lengths(
        g_d.double().norm()[None],
        torch.dot(g_d, shift_d).double()[None],
        shift_d.double().norm()[None],
        alpha,
        lambda _: (g_d, shift_d),
    )
    expected = float((g_d.double() + alpha * shift_d.double()).norm())
    assert lengths_K.item() == pytest.approx(expected, rel=1e-6)
    assert directly == ([0] if left_over < 0.1 else [])


def test_the_length_of_a_sum_is_computed_directly_when_the_product_overflows() -> None:
    g_d, shift_d = torch.tensor([-1e19, 0.0]), torch.tensor([3e19, 4e19])
    products_K = torch.mv(g_d[None], shift_d * 10).double()
    assert products_K.tolist() == [-math.inf]
    lengths_K, directly = pairwise.fused_lengths(
        torch.tensor([1e19]).double(), products_K, torch.tensor([5e20]).double(), 0.1, lambda _: (g_d, shift_d * 10)
    )
    assert lengths_K.item() == pytest.approx(math.hypot(3e19 - 1e19, 4e19), rel=1e-6)
    assert directly == [0]


def test_a_vector_without_length_has_no_direction() -> None:
    products, lengths = torch.tensor([3.0, 1e-13, 0.0]).double(), torch.tensor([6.0, 1e-12, 0.0]).double()
    assert pairwise.cosines(products, lengths).tolist() == [0.5, 0.0, 0.0]


def test_cosines_in_float64_match_the_equation() -> None:
    rows_Kd, others_nd = (torch.randn(3, 10_000, generator=GENERATOR), torch.randn(2, 10_000, generator=GENERATOR))
    others_nd[1] = 0.0
    expected_Kn = torch.nn.functional.cosine_similarity(rows_Kd.double()[:, None], others_nd.double()[None], dim=2)
    torch.testing.assert_close(pairwise.cosines64(rows_Kd, others_nd), expected_Kn, atol=1e-14, rtol=0)
