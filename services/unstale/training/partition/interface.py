"""The interface of partitions: from labels to the indices of each client's training and test examples; statistics.

Source: docs/methods/partitions.md#partitions

Legend: N clients, n examples, C classes, M_c test examples of class c.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from unstale.errors import UserError
from unstale.seeds import Generator

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Examples:
    """Labels and groups of the examples to divide, read-only."""

    labels_n: NDArray[np.integer]  # in [0, C)
    # number of the source of each example (a writer, a celebrity, a value of a column), or None
    groups_n: Indices | None = None

    def __len__(self) -> int:
        return len(self.labels_n)

    @property
    def classes(self) -> int:
        """C, one more than the largest label."""
        return int(self.labels_n.max()) + 1

    @property
    def counts_C(self) -> Indices:
        """Number of examples of each class."""
        return np.bincount(self.labels_n, minlength=self.classes).astype(np.int64)

    def of_class(self, label: int) -> Indices:
        """The indices of one class, ascending."""
        return np.flatnonzero(self.labels_n == label)

    def of_groups(self, groups_N: Indices) -> list[Indices]:
        """The indices of each of these groups, ascending, after one sort of the data. groups_N: all different."""
        assert self.groups_n is not None
        by_group = np.argsort(self.groups_n, kind="stable")
        sorted_n = self.groups_n[by_group]
        first_N = np.searchsorted(sorted_n, groups_N, side="left")
        after_N = np.searchsorted(sorted_n, groups_N, side="right")
        return [by_group[first:after] for first, after in zip(first_N, after_N, strict=True)]


class Partition(BaseModel, ABC):
    """A method that divides examples among clients. Holds settings only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by_group: ClassVar[bool] = False  # clients are groups of the data, and so are their own test examples
    # all clients hold the same number of examples of each of their classes, in their own test sets too
    is_even: ClassVar[bool] = False

    @abstractmethod
    def check(self, examples: Examples, clients: int) -> None:
        """Raise UserError if the examples cannot be divided. Compares numbers only, without random numbers."""

    @abstractmethod
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        """The examples of each client, in any order, after a `check`. rng: the only source of randomness."""


class SizedPartition(Partition):
    """A partition that needs `min_examples` for each client, and nothing else."""

    min_examples: int

    @override
    def check(self, examples: Examples, clients: int) -> None:
        check_size(len(examples), clients, self.min_examples)


def check_size(examples: int, clients: int, min_examples: int) -> None:
    """Raise UserError for too few examples."""
    if examples < clients * min_examples:
        raise UserError(
            f"{examples} examples cannot give {clients} clients {min_examples} each; "
            f"take at most {examples // min_examples} clients or lower min_examples"
        )


def check(partition: Partition, labels_n: NDArray[np.integer], clients: int, groups_n: Indices | None = None) -> None:
    """Raise UserError if `split` would. Cheap."""
    if clients < 1:
        raise UserError(f"clients is {clients}, expected 1 or more")
    if not len(labels_n):
        raise UserError("the data has no training examples, expected some for every client")
    partition.check(Examples(labels_n, groups_n), clients)


def split(
    partition: Partition, labels_n: NDArray[np.integer], clients: int, rng: Generator, groups_n: Indices | None = None
) -> list[Indices]:
    """The indices of each client's examples, at least one each, shuffled.

    labels_n, groups_n: as in `Examples`. rng: of `Stream.PARTITION`. Raises UserError if the examples cannot be
    divided.
    """
    check(partition, labels_n, clients, groups_n)
    partitions = partition.partitions(Examples(labels_n, groups_n), clients, rng)
    assert len(partitions) == clients and all(len(share) for share in partitions)
    return [rng.permutation(share) for share in partitions]


def split_test_set(
    partition: Partition, partitions: Sequence[Indices], train: Examples, test: Examples, rng: Generator
) -> list[Indices]:
    """The indices of the test examples of each client, disjoint and possibly empty.

    A client that is a group of the data (such as a writer) gets the test examples of its group. Otherwise each class is
    shuffled, and the examples of client i end at

        floor(M_c * (training examples of class c of clients 0..i) / (training examples of class c of all clients))

    so that a client has nearly the class proportions of its training data. For an even partition (`classes`), all
    shards of all classes have one size: M of the rarest class over the most clients of a class. Test examples of a
    class that no client has are not used.

    partitions: from `split`. rng: independent of the generator of `split`.
    Source: FedAR (Jiang et al., 2024), docs/methods/partitions.md#test-sets-of-clients
    """
    if partition.by_group:
        assert train.groups_n is not None
        # Each client has the examples of one group, and at least one.
        return test.of_groups(np.array([train.groups_n[indices[0]] for indices in partitions]))
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


def label_counts(partitions: Sequence[Indices], labels_n: NDArray[np.integer], classes: int) -> Indices:
    """[N, C] int64: examples of each client and class. labels_n: in [0, classes)."""
    return np.stack([np.bincount(labels_n[share], minlength=classes) for share in partitions]).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Minimum, median and maximum over the clients."""

    min: int
    median: float
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Statistics of all clients."""

    clients: int
    examples: int  # n
    held: int  # examples of at least one client
    shared: int  # examples of several clients
    sizes: Spread  # examples per client
    classes: Spread  # classes per client
    # mean over the clients of the total variation distance between the label distribution of the client and of
    # all examples, 0.5 * sum_c |p_ic - p_c|: 0 if all are equal, 1 - 1/C for one of C equal classes each
    distance: float


def summary(partitions: Sequence[Indices], labels_n: NDArray[np.integer], classes: int) -> Summary:
    """Statistics of shares that are not empty. labels_n: in [0, classes)."""
    counts_NC = label_counts(partitions, labels_n, classes)
    sizes_N = counts_NC.sum(axis=1)
    overall_C = np.bincount(labels_n, minlength=classes) / len(labels_n)
    holders_n = np.bincount(np.concatenate(partitions), minlength=len(labels_n))
    return Summary(
        clients=len(partitions),
        examples=len(labels_n),
        held=int((holders_n > 0).sum()),
        shared=int((holders_n > 1).sum()),
        sizes=_spread(sizes_N),
        classes=_spread((counts_NC > 0).sum(axis=1)),
        distance=float(np.abs(counts_NC / sizes_N[:, None] - overall_C).sum(axis=1).mean() / 2),
    )


def _spread(numbers_N: Indices) -> Spread:
    return Spread(min=int(numbers_N.min()), median=float(np.median(numbers_N)), max=int(numbers_N.max()))
