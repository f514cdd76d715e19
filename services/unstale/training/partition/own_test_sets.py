"""Each client's part of the test set, for fairness over clients.

Source: FedAR (Jiang et al., 2024), docs/methods/partitions.md#test-sets-of-clients

Legend: N clients, n training examples, M test examples, C classes.
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
    """The test examples of each client, disjoint; a client may get none.

    Clients that are groups of the data get the test examples of their groups. Else each class is shuffled and cut at

        floor(M_c * (examples of class c that clients 0..i hold) / (those that all clients hold))

    so that a client has nearly the class proportions of its training data. If the training data is divided evenly
    (`classes`), so is the test set: each class is cut to the size of the rarest, and into equal shards.

    partitions: of `split` for `train` and `partition`. rng: another stream than that of the shares.
    """
    if partition.by_group:
        return _of_the_same_groups(partitions, train, test)
    classes = max(train.classes, test.classes)
    counts_NC = label_counts(partitions, train.labels_n, classes)
    of_class = [rng.permutation(test.of_class(label)) for label in range(classes)]
    if partition.is_even:
        holders_C = (counts_NC > 0).sum(axis=0)
        size = min(len(own) for own in of_class) // int(holders_C.max())
        of_class = [own[: size * holders] for own, holders in zip(of_class, holders_C, strict=True)]
    dealt = [
        np.split(own, np.cumsum(held_N)[:-1] * len(own) // held_N.sum())
        for own, held_N in zip(of_class, counts_NC.T, strict=True)
        if held_N.any()
    ]
    return [np.concatenate(parts) for parts in zip(*dealt, strict=True)]


def _of_the_same_groups(partitions: Sequence[Indices], train: Examples, test: Examples) -> list[Indices]:
    assert train.groups_n is not None and test.groups_n is not None
    return members(test, np.array([train.groups_n[share[0]] for share in partitions]))
