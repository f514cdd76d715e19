"""The interface of partitions: from labels to the indices of each client's examples.

Source: docs/methods/partitions.md#partitions

Legend: N clients, n examples, C classes.
"""

from abc import ABC, abstractmethod
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
    """Labels and groups of the examples to divide, read-only.

    labels_n: in [0, C). groups_n: source of each example (a writer, a celebrity, a value of a column) as a number; None
    for data without groups.
    """

    labels_n: NDArray[np.integer]
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


class Partition(BaseModel, ABC):
    """A method that divides examples among clients. Holds settings only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: ClassVar[str]  # of the method
    is_complete: ClassVar[bool] = True  # some client holds each example
    is_disjoint: ClassVar[bool] = True  # no two clients hold the same example
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


def check(partition: Partition, labels_n: NDArray[np.integer], clients: int, groups_n: Indices | None = None) -> None:
    """Raise UserError if `split` would. Cheap. labels_n, groups_n: as in `Examples`. clients: N."""
    if clients < 1:
        raise UserError(f"clients is {clients}, expected 1 or more")
    if not len(labels_n):
        raise UserError("the data has no training examples, expected some for every client")
    partition.check(Examples(labels_n, groups_n), clients)


def split(
    partition: Partition, labels_n: NDArray[np.integer], clients: int, rng: Generator, groups_n: Indices | None = None
) -> list[Indices]:
    """The indices of each client's examples, at least one each, shuffled.

    labels_n, groups_n: as in `Examples`. clients: N. rng: of `Stream.PARTITION`. Raises UserError if the examples
    cannot be divided.
    """
    check(partition, labels_n, clients, groups_n)
    partitions = partition.partitions(Examples(labels_n, groups_n), clients, rng)
    assert len(partitions) == clients and all(len(share) for share in partitions)
    return [rng.permutation(share) for share in partitions]


def check_size(examples: int, clients: int, min_examples: int) -> None:
    """Raise UserError for too few examples."""
    if examples < clients * min_examples:
        raise UserError(
            f"{examples} examples cannot give {clients} clients {min_examples} each; "
            f"take at most {examples // min_examples} clients or lower min_examples"
        )
