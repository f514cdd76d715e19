"""REFL's weights by hand (docs/methods/policies.md#refl)."""

import math
from dataclasses import replace

import pytest
import torch

from unstale.policies import create
from unstale.seeds import Stream, stream


def weights(make_batch, gradients: list[list[float]], staleness: list[int], **settings: object) -> list[float]:
    subject = create("refl", dimension=len(gradients[0]), clients=10, **settings)
    return subject.step(make_batch(gradients, staleness=staleness)).weights_K.tolist()


def shares(*raw: float) -> list[float]:
    return [pytest.approx(value / sum(raw), rel=1e-6) for value in raw]


def test_stale_updates_weigh_by_age_and_by_deviation_from_the_average_of_the_fresh(make_batch) -> None:
    # uF = (3, 0) from the first and the last; L = |(0, 0) - uF|^2 = 9 and |(3, 6) - uF|^2 = 36, so Lmax = 36.
    actual = weights(make_batch, [[2.0, 0.0], [0.0, 0.0], [3.0, 6.0], [4.0, 0.0]], [0, 1, 3, 0], beta=0.35)
    by_age = 0.65 / 2, 0.65 / 4
    by_deviation = 0.35 * (1 - math.exp(-9 / 36)), 0.35 * (1 - math.exp(-1))
    assert actual == shares(1.0, by_age[0] + by_deviation[0], by_age[1] + by_deviation[1], 1.0)


def test_age_counts_from_the_freshest_of_the_round(make_batch) -> None:
    gradients = [[2.0], [5.0]]
    assert weights(make_batch, gradients, [0, 3]) == weights(make_batch, gradients, [40, 43])


def test_beta_zero_is_age_alone(make_batch) -> None:
    assert weights(make_batch, [[1.0], [7.0]], [0, 3], beta=0.0) == shares(1.0, 1 / 4)


def test_beta_one_is_deviation_alone(make_batch) -> None:
    assert weights(make_batch, [[1.0], [7.0]], [0, 3], beta=1.0) == shares(1.0, 1 - math.exp(-1))


def test_updates_of_one_staleness_are_averaged(make_batch) -> None:
    """Property (f)."""
    assert weights(make_batch, [[1.0], [7.0], [4.0]], [5, 5, 5]) == [1 / 3] * 3


def test_stale_updates_that_do_not_deviate_weigh_by_age_alone(make_batch) -> None:
    assert weights(make_batch, [[2.0], [2.0]], [0, 1]) == shares(1.0, 0.65 / 2)


def test_a_deviation_within_rounding_counts_as_zero(make_batch) -> None:
    # The average of three rows of 0.1 is not 0.1 in float32.
    assert weights(make_batch, [[0.1]] * 5, [0, 0, 0, 1, 2]) == shares(1.0, 1.0, 1.0, 0.65 / 2, 0.65 / 3)


def test_small_deviations_from_long_updates_are_distinguished(make_batch) -> None:
    # 1e-4 and 2e-4 next to 1: in float32 squares of lengths would round them to zero.
    gradients = [[1.0, 0.0], [1.0, 1e-4], [1.0, 2e-4]]
    by_deviation = 0.35 * (1 - math.exp(-1 / 4)), 0.35 * (1 - math.exp(-1))
    expected = shares(1.0, 0.65 / 2 + by_deviation[0], 0.65 / 2 + by_deviation[1])
    assert weights(make_batch, gradients, [0, 1, 1]) == expected


def test_deviations_add_up_over_several_chunks_of_columns(make_batch) -> None:
    matrix = stream(0, Stream.BATCHES).standard_normal((4, 150_001)).astype("float32")
    deviation = ((matrix[1:].astype("float64") - matrix[0]) ** 2).sum(axis=1)
    raw = [0.65 / 2 + 0.35 * (1 - math.exp(-value / deviation.max())) for value in deviation.tolist()]
    subject = create("refl", dimension=150_001, clients=10)
    batch = make_batch([[0.0]] * 4, staleness=[0, 1, 1, 1])
    batch = replace(batch, matrix_Kd=torch.from_numpy(matrix))
    assert subject.step(batch).weights_K.tolist() == shares(1.0, *raw)
