"""The robust policies: by hand, their bounds under outliers, and their shared sums."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unstale.policies import create
from unstale.policies.krum import krum_scores
from unstale.policies.medians import WIDTH_ON_CPU, middle_mean
from unstale.policies.pairwise import gram, squared_distances
from unstale.seeds import Stream, stream

ROBUST = ("coordinate-median", "geometric-median", "krum", "multi-krum", "trimmed-mean")
COPES_WITH_A_THIRD = {"trimmed-mean": {"trim": 0.35}, "krum": {"byzantine": 3}, "multi-krum": {"byzantine": 3}}

over_all_robust = pytest.mark.parametrize("name", ROBUST)


def direction(name, batch, **policy_settings):
    policy = create(name, dimension=batch.matrix_Kd.shape[1], clients=50, **policy_settings)
    return policy.step(batch).direction_d


def weights(name, batch, **policy_settings):
    policy = create(name, dimension=batch.matrix_Kd.shape[1], clients=50, **policy_settings)
    return policy.step(batch).weights_K.tolist()


def rows_of(seed: int, rows: int, columns: int = 6) -> np.ndarray:
    return stream(seed, Stream.BATCHES).standard_normal((rows, columns)).astype(np.float32)


# ----------------------------------------------------------------------------------------------------------- by hand


def test_the_median_of_an_even_number_is_the_mean_of_the_two_in_the_middle(make_batch) -> None:
    batch = make_batch([[1.0, 9.0], [2.0, 0.0], [4.0, 5.0], [100.0, 6.0]], staleness=[0, 7, 0, 0])
    assert direction("coordinate-median", batch).tolist() == [3.0, 5.5]


def test_the_median_of_an_odd_number_is_the_one_in_the_middle(make_batch) -> None:
    batch = make_batch([[1.0, 9.0], [-50.0, 0.0], [4.0, 5.0]], staleness=[0, 0, 0])
    assert direction("coordinate-median", batch).tolist() == [1.0, 5.0]
    assert weights("coordinate-median", batch) == [1 / 3] * 3


@pytest.mark.parametrize(
    ("trim", "expected"),
    [(0.0, (1 + 2 + 4 + 5 + 88) / 5), (0.19, (1 + 2 + 4 + 5 + 88) / 5), (0.2, (2 + 4 + 5) / 3), (0.4, 4.0)],
)
def test_the_trimmed_mean_drops_the_share_at_each_end(trim: float, expected: float, make_batch) -> None:
    batch = make_batch([[4.0], [88.0], [1.0], [5.0], [2.0]], staleness=[0] * 5)
    assert direction("trimmed-mean", batch, trim=trim).tolist() == [pytest.approx(expected)]


def test_a_share_of_0_29_of_100_updates_is_29(make_batch) -> None:
    batch = make_batch([[float(value**2)] for value in range(100)], staleness=[0] * 100)
    expected = sum(value**2 for value in range(29, 71)) / 42
    assert direction("trimmed-mean", batch, trim=0.29).tolist() == [pytest.approx(expected)]


def test_krum_selects_the_update_closest_to_its_neighbours(make_batch) -> None:
    """K = 5, f = 1: two neighbours. Scores of 0, 1, 3, 4.5, 50: 1+9, 1+4, 4+2.25, 2.25+12.25, far."""
    batch = make_batch([[0.0], [1.0], [3.0], [4.5], [50.0]], staleness=[0] * 5)
    squared_KK = squared_distances(batch.matrix_Kd)
    assert krum_scores(squared_KK, 1).tolist() == [10.0, 5.0, 6.25, 14.5, 45.5**2 + 47.0**2]
    assert direction("krum", batch).tolist() == [1.0]
    assert weights("krum", batch) == [0, 1, 0, 0, 0]
    assert weights("krum", batch, selected=2) == [0, 0.5, 0.5, 0, 0]
    assert weights("multi-krum", batch) == [0.25, 0.25, 0.25, 0.25, 0]
    assert weights("multi-krum", batch, selected=2) == [0, 0.5, 0.5, 0, 0]
    assert weights("multi-krum", batch, selected=9) == [0.2] * 5


def test_krum_selects_the_lower_client_of_two_mutual_nearest_neighbours(make_batch) -> None:
    batch = make_batch([[9.0], [1.0], [2.0]], staleness=[0] * 3)  # one neighbour each: the last two tie
    assert weights("krum", batch) == [0, 1, 0]
    batch.client_ids_K.copy_(torch.tensor([0, 2, 1]))
    assert weights("krum", batch) == [0, 0, 1]


@over_all_robust
def test_a_single_update_is_the_result(name: str, make_batch) -> None:
    assert direction(name, make_batch([[3.0, -1.0]], staleness=[4])).tolist() == [3.0, -1.0]


def test_the_geometric_median_of_a_triangle_is_its_fermat_point(make_batch) -> None:
    """Fermat's point of (0,0), (4,0), (2,y): on the axis of symmetry, at height 2 / sqrt(3)."""
    batch = make_batch([[0.0, 0.0], [4.0, 0.0], [2.0, 5.0]], staleness=[0] * 3)
    assert direction("geometric-median", batch).tolist() == pytest.approx([2.0, 2 / 3**0.5], abs=1e-6)


def test_the_geometric_median_of_an_obtuse_triangle_is_its_obtuse_corner(make_batch) -> None:
    batch = make_batch([[-4.0, 0.5], [0.0, 0.0], [4.0, 0.5]], staleness=[0] * 3)
    assert direction("geometric-median", batch).tolist() == pytest.approx([0.0, 0.0], abs=1e-5)
    assert weights("geometric-median", batch) == pytest.approx([0, 1, 0], abs=1e-5)


@pytest.mark.parametrize("size", [1e-25, 1e-3, 1.0, 10.0, 1e6, 1e18])
def test_the_geometric_median_moves_away_from_an_update_at_the_mean(size: float, make_batch) -> None:
    """(0,1) is the mean, and three of five updates at (-2,1) pull it there by 3 - 1 = 2 > 1."""
    rows = [[0.0, 1.0], [-2.0, 1.0], [-2.0, 1.0], [-2.0, 1.0], [6.0, 1.0]]
    batch = make_batch([[size * x, size * y] for x, y in rows], staleness=[0] * 5)
    assert (direction("geometric-median", batch) / size).tolist() == pytest.approx([-2.0, 1.0], abs=1e-6)
    assert weights("geometric-median", batch) == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0], abs=1e-6)


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e12])
def test_the_geometric_median_moves_from_the_mean_to_a_point_between_updates(size: float, make_batch) -> None:
    """The mean (0,0) is an update that four others pull to the right; at the median all unit pulls cancel."""
    rows = np.array([[0.0, 0.0], [1.0, 0.5], [1.0, -0.5], [1.0, 0.25], [1.0, -0.25], [-4.0, 0.0]])
    batch = make_batch((size * rows).tolist(), staleness=[0] * 6)
    x, y = (direction("geometric-median", batch).double().numpy() / size).tolist()
    assert y == pytest.approx(0.0, abs=1e-7)
    apart = rows - [x, 0]
    pulls = apart / np.linalg.norm(apart, axis=1)[:, None]
    np.testing.assert_allclose(pulls.sum(0), 0, atol=1e-5)


def test_a_majority_of_equal_updates_is_the_geometric_median(make_batch) -> None:
    batch = make_batch([[7.0, 1.0], [3.0, 3.0], [3.0, 3.0], [-1e9, 5.0], [3.0, 3.0]], staleness=[0] * 5)
    assert direction("geometric-median", batch).tolist() == [3.0, 3.0]
    assert weights("geometric-median", batch) == pytest.approx([0, 1 / 3, 1 / 3, 0, 1 / 3])


# -------------------------------------------------------------------------------------------------------------- laws


@over_all_robust
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 12))
def test_a_robust_step_lies_within_the_range_of_the_updates(name: str, seed: int, rows: int, make_batch) -> None:
    batch = make_batch(rows_of(seed, rows).tolist(), staleness=[0] * rows)
    step_d = direction(name, batch)
    slack = 1e-6 * batch.matrix_Kd.abs().amax(0)
    assert bool((step_d >= batch.matrix_Kd.amin(0) - slack).all())
    assert bool((step_d <= batch.matrix_Kd.amax(0) + slack).all())


@over_all_robust
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    wild=st.integers(1, 3),
    size=st.sampled_from([1e3, 1e12, 3e18, 1e25, 1e37]),
    data=st.data(),
)
def test_outliers_move_the_step_at_most_to_the_range_of_the_others(name, seed, wild, size, data, make_batch) -> None:
    """At most three of ten: every robust policy stays within a few times the spread of the seven."""
    rows = rows_of(seed, 10)
    positions = data.draw(st.permutations(range(10)))[:wild]
    rows[positions] *= size / np.abs(rows[positions]).max()
    step_d = direction(name, make_batch(rows.tolist(), staleness=[0] * 10), **COPES_WITH_A_THIRD.get(name, {}))
    honest = np.delete(rows, positions, axis=0)
    assert float(step_d.norm()) <= 4 * np.linalg.norm(honest, axis=1).max()


@over_all_robust
def test_staleness_and_examples_do_not_matter(name: str, make_batch) -> None:
    rows = rows_of(1, 7).tolist()
    fresh = make_batch(rows, staleness=[0] * 7)
    stale = make_batch(rows, staleness=[5000, 0, 3, 1, 0, 9, 2], examples=[1, 900, 4, 5, 6, 7, 8])
    assert torch.equal(direction(name, fresh), direction(name, stale))


@over_all_robust
def test_finite_updates_of_any_size_give_a_finite_step(name: str, make_batch) -> None:
    rows = [[3e38, 1e-30], [-3e38, 1e-38], [3e38, -1e-30], [1e38, 1e-42]]
    assert bool(torch.isfinite(direction(name, make_batch(rows, staleness=[0] * 4))).all())


# -------------------------------------------------------------------------------------------------------- shared sums


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 40), data=st.data())
def test_the_median_of_every_column_matches_sorting(seed: int, rows: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, (rows - 1) // 2))
    matrix = rows_of(seed, rows, 9)
    expected = np.sort(matrix.astype(np.float64), axis=0)[cut : rows - cut].mean(axis=0)
    actual = middle_mean(torch.from_numpy(matrix), cut, torch.empty(9))
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-6)


def test_all_chunks_of_columns_are_computed() -> None:
    matrix = rows_of(0, 5, WIDTH_ON_CPU + 3)
    actual = middle_mean(torch.from_numpy(matrix), 2, torch.empty(WIDTH_ON_CPU + 3))
    np.testing.assert_array_equal(actual.numpy(), np.median(matrix, axis=0))
    products = gram(torch.from_numpy(matrix))
    np.testing.assert_allclose(products.numpy(), matrix.astype(np.float64) @ matrix.astype(np.float64).T, rtol=1e-12)


def test_distances_of_close_long_rows_keep_their_digits() -> None:
    """Rows 1e-5 of their length apart, an outlier first: in float32 the products would be 0 or meaningless."""
    rng = stream(4, Stream.BATCHES)
    common = 1000 * rng.standard_normal(50_000)
    matrix = (common + 0.01 * rng.standard_normal((6, 50_000))).astype(np.float32)
    matrix[0] *= 1e12
    exact = matrix.astype(np.float64)
    expected = ((exact[:, None] - exact[None, :]) ** 2).sum(axis=2)
    np.testing.assert_allclose(squared_distances(torch.from_numpy(matrix)).numpy(), expected, rtol=3e-4)


def test_equal_rows_have_a_distance_of_about_zero() -> None:
    squared_KK = squared_distances(torch.from_numpy(rows_of(2, 1, 5000)).repeat(4, 1))
    assert bool((squared_KK >= 0).all())
    assert float(squared_KK.max()) < 1e-9
