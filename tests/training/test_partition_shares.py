"""Results computed from shares: histograms, each client's own test set."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.parts_of_runs import partition_of
from unstale.seeds import Stream, stream
from unstale.training.partition import PARTITIONS, Examples, Spread, label_counts, split, split_test_set, summary


def rng(*key: int):
    return stream(0, Stream.PARTITION, *key)


class InOrder:
    def permutation(self, values):
        return values


def arrays(*shares: list[int]):
    return [np.array(share, dtype=np.int64) for share in shares]


def test_a_histogram_counts_each_class_of_each_client():
    counts_NC = label_counts(arrays([0, 2], [1]), np.array([0, 1, 0]), 3)
    assert counts_NC.tolist() == [[2, 0, 0], [0, 1, 0]]


def test_a_summary_by_hand():
    # All: half of each class. Client 0 holds class 0 only: 0.5 * (0.5 + 0.5) = 0.5; client 1 both: 0. Mean 0.25.
    made = summary(arrays([0, 1], [1, 2]), np.array([0, 0, 1, 1]), 2)
    assert made.distance == 0.25
    assert (made.clients, made.examples, made.held, made.shared) == (2, 4, 3, 1)
    assert made.sizes == Spread(min=2, median=2.0, max=2)
    assert made.classes == Spread(min=1, median=1.5, max=2)


def test_the_distance_of_one_class_a_client_is_the_most_there_is():
    labels_n = np.repeat(np.arange(10), 10)
    assert summary(split(partition_of("iid"), labels_n, 1, rng()), labels_n, 10).distance == pytest.approx(0)
    assert summary(split(partition_of("blocks"), labels_n, 10, rng()), labels_n, 10).distance == pytest.approx(0.9)


# --- each client's own test set ---


def test_test_examples_are_cut_by_the_shares_of_the_training_data():
    # Class 0: clients hold 3, 1, 0 of 4, so 6 test examples are cut at floor(6 * 3/4) = 4 and floor(6 * 4/4) = 6.
    # Class 1: 0, 1, 2 of 3, so 5 are cut at 0 and floor(5 * 1/3) = 1. No client trains on class 2.
    train = Examples(np.array([0, 0, 0, 0, 1, 1, 1, 2]))
    test = Examples(np.array([0] * 6 + [1] * 5 + [2]))
    own = split_test_set(partition_of("dirichlet"), arrays([0, 1, 2], [3, 4], [5, 6]), train, test, InOrder())
    assert [part.tolist() for part in own] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9, 10]]


def test_overlapping_clients_still_have_test_examples_of_their_own():
    # Both hold the same example: of 3 test examples floor(3 * 1/2) = 1 and 2.
    own = split_test_set(
        partition_of("label-count"), arrays([0], [0]), Examples(np.array([0])), Examples(np.array([0] * 3)), InOrder()
    )
    assert [part.tolist() for part in own] == [[0], [1, 2]]


def test_groups_get_the_test_examples_of_the_same_groups():
    train = Examples(np.zeros(5, dtype=int), np.array([7, 4, 4, 7, 2]))
    test = Examples(np.zeros(5, dtype=int), np.array([4, 7, 3, 4, 4]))
    shares = split(partition_of("column"), train.labels_n, 3, rng(), train.groups_n)
    own = split_test_set(partition_of("column"), shares, train, test, InOrder())
    assert [sorted(part.tolist()) for part in own] == [[], [0, 3, 4], [1]]


def test_an_even_partition_has_even_test_sets():
    # 10 clients with 2 of 5 classes: 4 shards a class. The rarest class has 9 test examples: 2 a shard, 4 a client.
    train = Examples(np.repeat(np.arange(5), 50))
    test = Examples(np.repeat(np.arange(5), [12, 9, 20, 15, 11]))
    shares = split(partition_of("classes"), train.labels_n, 10, rng())
    own = split_test_set(partition_of("classes"), shares, train, test, rng(1))
    held_NC, own_NC = (label_counts(shares, train.labels_n, 5), label_counts(own, test.labels_n, 5))
    assert np.array_equal(own_NC, 2 * (held_NC > 0))


@pytest.mark.parametrize("name", PARTITIONS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 100), tested=st.integers(1, 300))
def test_test_sets_are_disjoint_and_have_the_classes_of_the_client(name, seed, tested):
    drawn = stream(seed, Stream.BATCHES)
    train = Examples(drawn.integers(0, 4, 2000), np.arange(2000) % 8)
    test = Examples(drawn.integers(0, 4, tested), drawn.integers(0, 8, tested))
    shares = split(
        partition_of(name, **({"budget": 100} if name == "dirichlet-client" else {})),
        train.labels_n,
        8,
        rng(),
        train.groups_n,
    )
    own = split_test_set(partition_of(name), shares, train, test, rng(1))
    used = np.concatenate(own).tolist()
    assert len(own) == 8
    assert len(set(used)) == len(used)
    held_NC, own_NC = label_counts(shares, train.labels_n, 4), label_counts(own, test.labels_n, 4)
    if PARTITIONS[name].by_group:
        assert len(used) == tested
        return
    assert not own_NC[held_NC == 0].any()
    if not PARTITIONS[name].is_even:
        exact_NC = held_NC / held_NC.sum(axis=0) * np.bincount(test.labels_n, minlength=4)
        assert (np.abs(own_NC - exact_NC) < 1 + 1e-9).all()
        assert len(used) == tested
