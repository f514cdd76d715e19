"""Splits the test set between clients, to measure how accuracy varies between them.

Source: FedAR (Jiang et al., 2024), docs/methods/partitions.md#test-sets-of-clients

Legend: N clients, n training examples, C classes, M_c test examples of class c.
"""

from collections.abc import Sequence

import numpy as np

from unstale.seeds import Generator
from unstale.training.partition.histogram import label_counts
from unstale.training.partition.interface import Examples, Indices, Partition
from unstale.training.partition.natural import members


def split_test_set(
    partition: Partition, partitions: Sequence[Indices], train: Examples, test: Examples, rng: Generator
) -> list[Indices]:
    """Return the indices of the test examples of each client, disjoint and possibly empty.

    A client that is a group of the data (such as a writer) gets the test examples of its group. Otherwise each class is
    shuffled, and the examples of client i end at

        floor(M_c * (training examples of class c of clients 0..i) / (training examples of class c of all clients))

    so that a client has nearly the class proportions of its training data. For an even partition (`classes`), all
    shards of all classes have one size: M of the rarest class over the most clients of a class. Test examples of a
    class that no client has are not used.

    Args:
        partition: Of the training set.
        partitions: Indices of the training examples of each client, from `split`.
        train: Training examples.
        test: Test examples.
        rng: Independent of the generator of `split`.
    """
    if partition.by_group:
        return _of_the_same_groups(partitions, train, test)
    classes = max(train.classes, test.classes)
    counts_NC = label_counts(partitions, train.labels_n, classes)
    class_indices = [rng.permutation(test.of_class(label)) for label in range(classes)]
    if partition.is_even:
        holders_C = (counts_NC > 0).sum(axis=0)
        size = min(map(len, class_indices)) // int(holders_C.max())
        class_indices = [indices[: size * holders] for indices, holders in zip(class_indices, holders_C, strict=True)]
    parts_by_class = [
        np.split(indices, np.cumsum(count_N)[:-1] * len(indices) // count_N.sum())
        for indices, count_N in zip(class_indices, counts_NC.T, strict=True)
        if count_N.any()
    ]
    return [np.concatenate(parts) for parts in zip(*parts_by_class, strict=True)]


def _of_the_same_groups(partitions: Sequence[Indices], train: Examples, test: Examples) -> list[Indices]:
    assert train.groups_n is not None and test.groups_n is not None
    # Each client has the examples of one group, and at least one.
    return members(test, np.array([train.groups_n[indices[0]] for indices in partitions]))
