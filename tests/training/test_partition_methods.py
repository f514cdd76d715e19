"""Each partition against shares written out by hand, and against the moments of its draws."""

from math import gcd

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.parts_of_runs import partition_of
from unstale.seeds import Stream, stream
from unstale.training.partition import Examples, label_counts, slow_clients, split
from unstale.training.partition.classes import rounded


def rng(seed: int = 0):
    return stream(seed, Stream.PARTITION)


class Scripted:
    """A stream that leaves every order as it is, draws the shares it was given and always picks position 0."""

    def __init__(self, *shares: list[float], order: list[int] | None = None) -> None:
        self.shares = list(shares)
        self.order = order
        self.alphas: list[list[float]] = []

    def permutation(self, values):
        if isinstance(values, int | np.integer):
            return np.array(self.order) if self.order else np.arange(values)
        return values

    def dirichlet(self, alphas):
        self.alphas.append(alphas.tolist())
        return np.array(self.shares.pop(0))

    def integers(self, high):
        return 0


def by_hand(partition, labels: list[int], clients: int, scripted: Scripted, groups=None) -> list[list[int]]:
    examples = Examples(np.array(labels), None if groups is None else np.array(groups))
    return [share.tolist() for share in partition.partitions(examples, clients, scripted)]


def test_iid_parts_are_nearly_equal_with_the_first_ones_one_larger():
    parts = split(partition_of("iid", min_examples=2), np.zeros(11, dtype=int), 4, rng())
    assert [len(part) for part in parts] == [3, 3, 3, 2]


# --- 3.2 ---


def test_a_dirichlet_of_infinite_alpha_is_iid():
    labels_n = np.arange(40) % 3
    alike = split(partition_of("dirichlet", alpha=float("inf")), labels_n, 4, rng())
    iid = split(partition_of("iid"), labels_n, 4, rng())
    assert all(np.array_equal(a, b) for a, b in zip(alike, iid, strict=True))


def test_dirichlet_cuts_each_class_at_the_floor_of_its_cumulated_shares():
    # Class 0 is 0..4, class 1 is 5..8. Cuts of class 0: floor(0.5 * 5) = 2, floor(0.75 * 5) = 3;
    # of class 1: floor(0.25 * 4) = 1, floor(0.5 * 4) = 2.
    scripted = Scripted([0.5, 0.25, 0.25], [0.25, 0.25, 0.5])
    partition = partition_of("dirichlet", alpha=0.3, min_examples=1)
    assert by_hand(partition, [0] * 5 + [1] * 4, 3, scripted) == [[0, 1, 5], [2, 6], [3, 4, 7, 8]]
    assert scripted.alphas == [[0.3] * 3] * 2


def test_dirichlet_repairs_the_smallest_client_from_the_largest():
    # All 6 go to client 2: [], [], [0..5]. The smallest, lowest id first, gets the largest's first in turn:
    # client 0 gets 0, client 1 gets 1, client 0 gets 2, client 1 gets 3; then all have the 2 they need.
    partition = partition_of("dirichlet", min_examples=2)
    assert by_hand(partition, [0] * 6, 3, Scripted([0, 0, 1])) == [[0, 2], [1, 3], [4, 5]]


def test_the_shares_of_a_class_have_mean_and_variance_of_a_dirichlet():
    # q_i of Dirichlet(alpha * 1_N): mean 1/N = 0.2, variance (1/N)(1 - 1/N) / (N alpha + 1) = 0.16 / 2.5 = 0.064.
    labels_n = np.repeat(np.arange(400), 500)
    shares = split(partition_of("dirichlet", alpha=0.3), labels_n, 5, rng())
    q_NC = label_counts(shares, labels_n, 400) / 500
    assert q_NC.mean(axis=1) == pytest.approx([0.2] * 5, abs=4 * np.sqrt(0.064 / 400))
    assert q_NC.var() == pytest.approx(0.064, rel=0.1)


def test_a_small_alpha_makes_clients_less_alike_than_a_large_one():
    labels_n = np.arange(1000) % 10

    def share_of_the_commonest_class(alpha: float) -> float:
        parts = split(partition_of("dirichlet", alpha=alpha), labels_n, 10, rng())
        return float(np.mean([np.bincount(labels_n[part]).max() / len(part) for part in parts]))

    assert share_of_the_commonest_class(0.1) > share_of_the_commonest_class(1) > share_of_the_commonest_class(100)


# --- 3.3 ---


def test_each_client_draws_its_own_mixture_until_a_class_runs_out():
    # Class 0 is 0..4, class 1 is 5..9; a budget of 4. Client 0 takes 2 and 2; client 1 wants 4 of class 0, of which 3
    # are left; client 2 wants 4 of it too and gets nothing, so that it is given a spare one: of 9, 8, 7 the first.
    partition = partition_of("dirichlet-client", alpha=0.5, budget=4, min_examples=1)
    scripted = Scripted([0.5, 0.5], [1, 0], [1, 0])
    assert by_hand(partition, [0] * 5 + [1] * 5, 3, scripted) == [[0, 1, 5, 6], [2, 3, 4], [9]]
    assert scripted.alphas == [[0.5] * 2] * 3


def test_when_no_example_is_spare_the_largest_client_gives():
    partition = partition_of("dirichlet-client", budget=3, min_examples=2)
    assert by_hand(partition, [0] * 6, 2, Scripted([1], [1])) == [[0, 1, 2], [3, 4, 5]]
    # Client 0 takes all 3 of class 0; client 1 wants them too and gets 2 of class 1's, which are spare.
    assert by_hand(partition, [0] * 3 + [1] * 2, 2, Scripted([1, 0], [1, 0])) == [[0, 1, 2], [4, 3]]
    # Of class 1 there is one: the other is client 0's first.
    assert by_hand(partition, [0] * 3 + [1], 2, Scripted([1, 0], [1, 0])) == [[1, 2], [3, 0]]


def test_a_mixture_of_infinite_alpha_is_the_same_number_of_every_class():
    labels_n = np.repeat(np.arange(4), 50)
    shares = split(partition_of("dirichlet-client", alpha=float("inf"), budget=18), labels_n, 10, rng())
    assert label_counts(shares, labels_n, 4).tolist() == [[4] * 4] * 10


def test_the_mixtures_of_the_clients_have_mean_and_variance_of_a_dirichlet():
    # Mean 1/C = 0.25, variance (1/C)(1 - 1/C) / (C alpha + 1) = 0.1875 / 5 = 0.0375; the floor takes half of 1/100.
    labels_n = np.repeat(np.arange(4), 30_000)
    shares = split(partition_of("dirichlet-client", alpha=1.0, budget=100), labels_n, 1000, rng())
    q_NC = label_counts(shares, labels_n, 4) / 100
    assert q_NC.mean(axis=0) == pytest.approx([0.245] * 4, abs=4 * np.sqrt(0.0375 / 1000))
    assert q_NC.var() == pytest.approx(0.0375, rel=0.1)


# --- 3.4 ---


@given(parts=st.lists(st.floats(1e-6, 1, exclude_min=False), min_size=1, max_size=12), total=st.integers(1, 100))
def test_rounding_keeps_the_sum_and_moves_no_part_by_one(parts, total):
    parts_L = total * np.array(parts) / np.sum(parts)
    counts_L = rounded(parts_L, total)
    assert counts_L.sum() == total
    assert (np.abs(counts_L - parts_L) < 1 + 1e-9).all()


def test_the_largest_remainder_is_rounded_up():
    # Floors 2, 1, 0 leave 1 of 4, for the remainder 0.6; of equal ones, for the first.
    assert rounded(np.array([2.2, 1.2, 0.6]), 4).tolist() == [2, 1, 1]
    assert rounded(np.array([1.5, 1.5]), 3).tolist() == [2, 1]


@pytest.mark.parametrize("classes", [1, 5, 10])
def test_label_counts_sizes_and_classes_are_drawn_uniformly(classes):
    labels_n = np.repeat(np.arange(10), 60)
    shares = split(partition_of("label-count", classes=classes), labels_n, 2000, rng())
    sizes_N = np.array([len(share) for share in shares])
    # Uniform over 10..49: mean 29.5, variance (40^2 - 1) / 12 = 133.25.
    assert (sizes_N.min(), sizes_N.max()) == (10, 49)
    assert sizes_N.mean() == pytest.approx(29.5, abs=4 * np.sqrt(133.25 / 2000))
    held_NC = label_counts(shares, labels_n, 10) > 0
    assert held_NC.sum(axis=1).max() == classes
    # A class may get a weight near 0 and so no example, but rarely.
    assert held_NC.sum(axis=1).mean() > 0.85 * classes
    in_demand_C = held_NC.sum(axis=0)
    assert in_demand_C == pytest.approx(np.full(10, in_demand_C.mean()), rel=0.2)


def test_clients_of_label_count_draw_from_the_first_examples_of_each_class_only():
    labels_n = np.repeat([0, 1], 50)
    partition = partition_of("label-count", smallest=2, largest=5, pool=5)
    held = set(np.concatenate(split(partition, labels_n, 200, rng())).tolist())
    assert held == {*range(5), *range(50, 55)}


@pytest.mark.parametrize(("classes", "low", "high"), [(62, 5, 20), (10, 5, 10), (2, 2, 2)])
def test_synthetic_writers_have_5_to_20_classes_or_as_many_as_there_are(classes, low, high):
    labels_n = np.repeat(np.arange(classes), 500)
    partition = partition_of("natural-synthetic", smallest=400, largest=400)
    held_N = (label_counts(split(partition, labels_n, 300, rng()), labels_n, classes) > 0).sum(axis=1)
    assert held_N.max() == high
    # The mean of a uniform number; of 400 examples hardly a class gets none.
    assert held_N.mean() == pytest.approx((low + high) / 2, abs=1)


# --- 3.5 ---


@st.composite
def evenly(draw: st.DrawFn):
    classes = draw(st.integers(1, 8))
    own = draw(st.integers(1, classes))
    clients = draw(st.integers(1, 6)) * classes // gcd(own, classes)
    shards = own * clients // classes
    counts_C = draw(st.lists(st.integers(shards, 80), min_size=classes, max_size=classes))
    return clients, own, counts_C


@settings(deadline=None)
@given(case=evenly(), seed=st.integers(0, 5))
def test_every_client_holds_k_classes_and_as_many_of_each_as_all_others(case, seed):
    clients, own, counts_C = case
    labels_n = np.repeat(np.arange(len(counts_C)), counts_C)
    shares = split(partition_of("classes", classes=own, min_examples=1), labels_n, clients, rng(seed))
    held_NC = label_counts(shares, labels_n, len(counts_C))
    shards = own * clients // len(counts_C)
    assert set(held_NC.flatten().tolist()) <= {0, min(counts_C) // shards}
    assert ((held_NC > 0).sum(axis=1) == own).all()
    assert ((held_NC > 0).sum(axis=0) == shards).all()


def test_shards_are_dealt_to_the_classes_with_the_most_left():
    # 2 clients, k = 1, classes of 3 and 2 examples: one shard each, of 2. The last shard goes first; ties keep order.
    assert by_hand(partition_of("classes", classes=1, min_examples=1), [0, 0, 0, 1, 1], 2, Scripted()) == [
        [0, 1],
        [3, 4],
    ]
    # In the order 1, 0, client 1 comes first, and class 1 is the first of the equal ones.
    scripted = Scripted(order=[1, 0])
    assert by_hand(partition_of("classes", classes=1, min_examples=1), [0, 0, 0, 1, 1], 2, scripted) == [[0, 1], [3, 4]]


# --- 3.6, column ---


def test_natural_takes_the_first_groups_that_are_large_enough():
    partition = partition_of("natural", min_examples=2)
    assert by_hand(partition, [0] * 8, 2, Scripted(), groups=[9, 3, 7, 3, 9, 5, 5, 3]) == [[1, 3, 7], [5, 6]]
    assert len(by_hand(partition, [0] * 8, 3, Scripted(), groups=[9, 3, 7, 3, 9, 5, 5, 3])) == 3


def test_column_numbers_the_clients_by_ascending_value():
    assert by_hand(partition_of("column"), [0] * 5, 3, Scripted(), groups=[8, -1, 8, 2, 8]) == [[1], [3], [0, 2, 4]]


# --- 3.7 ---


@pytest.mark.parametrize(
    ("clients", "share", "slow"), [(100, 0.1, 10), (30, 0.1, 3), (100, 0.07, 7), (15, 0.1, 2), (3, 1, 3), (1, 0.1, 1)]
)
def test_the_slow_clients_are_the_last_ones_and_their_number_is_not_rounded_twice(clients, share, slow):
    # In floats 0.1 * 30 is above 3 and 0.07 * 100 is above 7.
    assert list(slow_clients(clients, share)) == list(range(clients - slow, clients))


@pytest.mark.parametrize(("chosen", "label"), [({}, 9), ({"slow_class": 4}, 4)])
@pytest.mark.parametrize("alpha", [1e-3, 0.3, float("inf")])
def test_only_slow_clients_hold_the_slow_class(chosen, label, alpha):
    labels_n = np.arange(4000) % 10
    shares = split(partition_of("slow-class", alpha=alpha, **chosen), labels_n, 40, rng())
    counts_NC = label_counts(shares, labels_n, 10)
    assert counts_NC[:36, label].sum() == 0
    assert counts_NC[36:, label].sum() == 400
    assert (np.delete(counts_NC, label, axis=1).sum(axis=1) >= 8).all()


def test_slow_class_cuts_as_dirichlet_does_over_those_who_hold_the_class():
    # Classes 0 and 2 over all four: floors of 0.25, 0.5, 0.75 times 4. Class 1 over clients 2 and 3, half and half.
    partition = partition_of("slow-class", alpha=0.3, slow_share=0.5, slow_class=1, min_examples=1)
    scripted = Scripted([0.25] * 4, [0.25] * 4, [0.5, 0.5])
    assert by_hand(partition, [0, 0, 0, 0, 1, 1, 2, 2, 2, 2], 4, scripted) == [[0, 6], [1, 7], [2, 8, 4], [3, 9, 5]]
    assert scripted.alphas == [[0.3] * 4, [0.3] * 4, [0.3] * 2]


# --- 3.8 ---


def test_blocks_are_consecutive_by_label_and_dealt_in_random_order():
    # By label 1, 3, 5 | 0, 2 | 4, 6: nearly equal parts of 7 are 3, 2, 2.
    scripted = Scripted(order=[2, 0, 1])
    labels = [1, 0, 1, 0, 2, 0, 2]
    assert by_hand(partition_of("blocks", min_examples=1), labels, 3, scripted) == [[4, 6], [1, 3, 5], [0, 2]]
