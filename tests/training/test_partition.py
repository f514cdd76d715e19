import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.training.partition import PARTITIONS, dirichlet, split


def rng(seed: int = 0):
    return stream(seed, Stream.PARTITION)


@given(
    name=st.sampled_from(PARTITIONS),
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=120),
    clients=st.integers(1, 12),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 1e6, float("inf")]),
    min_examples=st.integers(1, 8),
    seed=st.integers(0, 3),
)
def test_every_example_goes_to_exactly_one_client_and_nobody_gets_too_few(
    name, labels, clients, alpha, min_examples, seed
):
    labels_n = np.array(labels)
    settings = {"alpha": alpha, "min_examples": min_examples}
    if len(labels) < clients * min_examples:
        with pytest.raises(UserError, match="cannot give"):
            split(name, labels_n, clients, rng(seed), **settings)
        return
    parts = split(name, labels_n, clients, rng(seed), **settings)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(len(part) for part in parts) >= min_examples
    assert all(part.dtype == np.int64 for part in parts)
    again = split(name, labels_n, clients, rng(seed), **settings)
    assert all(np.array_equal(part, same) for part, same in zip(parts, again, strict=True))


def test_iid_parts_are_nearly_equal_with_the_first_ones_one_larger():
    parts = split("iid", np.zeros(11, dtype=int), 4, rng(), min_examples=2)
    assert [len(part) for part in parts] == [3, 3, 3, 2]


def test_a_dirichlet_of_infinite_alpha_is_iid():
    labels_n = np.arange(40) % 3
    alike = split("dirichlet", labels_n, 4, rng(), alpha=float("inf"))
    assert all(np.array_equal(a, b) for a, b in zip(alike, split("iid", labels_n, 4, rng()), strict=True))


class Scripted:
    """A stream that leaves the order as it is, draws the shares it was given and always picks position 0."""

    def __init__(self, *shares: list[float]) -> None:
        self.shares = list(shares)

    def permutation(self, values):
        return values

    def dirichlet(self, alphas):
        assert alphas.tolist() == [0.3, 0.3, 0.3]
        return np.array(self.shares.pop(0))

    def integers(self, high):
        return 0


def test_dirichlet_cuts_each_class_at_the_floor_of_its_cumulated_shares():
    # Class 0 is 0..4, class 1 is 5..8. Cuts of class 0: floor(0.5 * 5) = 2, floor(0.75 * 5) = 3;
    # of class 1: floor(0.25 * 4) = 1, floor(0.5 * 4) = 2.
    labels_n = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1])
    scripted = Scripted([0.5, 0.25, 0.25], [0.25, 0.25, 0.5])
    parts = dirichlet(labels_n, 3, scripted, alpha=0.3, min_examples=1)
    assert [part.tolist() for part in parts] == [[0, 1, 5], [2, 6], [3, 4, 7, 8]]


def test_dirichlet_repairs_the_smallest_client_from_the_largest():
    # All 6 go to client 2: [], [], [0..5]. The smallest, lowest id first, gets the largest's first in turn:
    # client 0 gets 0, client 1 gets 1, client 0 gets 2, client 1 gets 3; then all have the 2 they need.
    parts = dirichlet(np.zeros(6, dtype=int), 3, Scripted([0, 0, 1]), alpha=0.3, min_examples=2)
    assert [part.tolist() for part in parts] == [[0, 2], [1, 3], [4, 5]]


def test_a_small_alpha_makes_clients_less_alike_than_a_large_one():
    labels_n = np.arange(1000) % 10

    def share_of_the_commonest_class(alpha: float) -> float:
        parts = split("dirichlet", labels_n, 10, rng(), alpha=alpha)
        return float(np.mean([np.bincount(labels_n[part]).max() / len(part) for part in parts]))

    assert (
        share_of_the_commonest_class(0.1)
        > share_of_the_commonest_class(1)
        > share_of_the_commonest_class(100)
    )


@pytest.mark.parametrize(
    ("name", "clients", "settings", "sentence"),
    [
        ("dirichle", 2, {}, "unknown partition 'dirichle'; did you mean 'dirichlet'?"),
        ("dirichlet", 2, {}, "partition 'dirichlet' needs alpha, for example 0.3"),
        (
            "dirichlet",
            2,
            {"alpha": 0.0},
            "alpha must be 0.001 to 1000000, or inf for IID, got 0.0",
        ),
        (
            "dirichlet",
            2,
            {"alpha": float("nan")},
            "alpha must be 0.001 to 1000000, or inf for IID, got nan",
        ),
        (
            "iid",
            13,
            {},
            "100 examples cannot give 13 clients 8 each; take at most 12 clients or lower min_examples",
        ),
        (
            "iid",
            0,
            {},
            "expected one or more clients with one or more examples each, got clients=0, min_examples=8",
        ),
        (
            "iid",
            2,
            {"min_examples": 0},
            "expected one or more clients with one or more examples each, got clients=2, min_examples=0",
        ),
    ],
)
def test_a_partition_that_cannot_be_made_is_refused_in_one_sentence(name, clients, settings, sentence):
    with pytest.raises(UserError) as caught:
        split(name, np.arange(100) % 10, clients, rng(), **settings)
    assert str(caught.value) == sentence
