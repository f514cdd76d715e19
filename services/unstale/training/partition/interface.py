"""The interface of partitions: labels in, the indices of each client's examples out.

Source: docs/methods/partitions.md#partitions

Legend: N clients, n examples, C classes.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from unstale.errors import UserError
from unstale.seeds import Generator

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Examples:
    """What is known of the examples that are shared out; never written to.

    labels_n: in [0, C). groups_n: whose each example is (a writer, a celebrity, a value of a column), as a number;
    None where the data does not say.
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
        """How many examples each class has."""
        return np.bincount(self.labels_n, minlength=self.classes).astype(np.int64)

    def of_class(self, label: int) -> Indices:
        """The indices of one class, ascending."""
        return np.flatnonzero(self.labels_n == label)


class Partition(BaseModel, ABC):
    """One way to share examples out. Holds settings only.

    is_complete: every example is held by some client. is_disjoint: none is held by two. by_group: clients are groups of
    the data itself, so that a client's own test examples are those of its groups. is_even: all clients hold as many
    examples of each class that they hold, and their own test examples are to be so, too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: ClassVar[str]
    is_complete: ClassVar[bool] = True
    is_disjoint: ClassVar[bool] = True
    by_group: ClassVar[bool] = False
    is_even: ClassVar[bool] = False

    @abstractmethod
    def check(self, examples: Examples, clients: int) -> None:
        """Raise UserError when the shares cannot be made. No draw, and little work: numbers are compared."""

    @abstractmethod
    def shares(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        """The examples of each client, in any order. Only called after `check`. rng: the only source of randomness."""


def check(
    partition: Partition,
    labels_n: NDArray[np.integer],
    clients: int,
    groups_n: Indices | None = None,
) -> None:
    """Raise UserError when `split` could not share these examples out; cheap, for whoever does not do it itself.

    labels_n, groups_n: as in `Examples`. clients: N.
    """
    if clients < 1:
        raise UserError(f"clients is {clients}, expected 1 or more")
    if not len(labels_n):
        raise UserError("the data has no training examples, expected some for every client")
    partition.check(Examples(labels_n, groups_n), clients)


def split(
    partition: Partition,
    labels_n: NDArray[np.integer],
    clients: int,
    rng: Generator,
    groups_n: Indices | None = None,
) -> list[Indices]:
    """The indices of each client's examples, at least one each, shuffled.

    labels_n, groups_n: as in `Examples`. clients: N. rng: the stream `Stream.PARTITION`; same stream, same split.
    Raises UserError when this cannot be done.
    """
    check(partition, labels_n, clients, groups_n)
    shares = partition.shares(Examples(labels_n, groups_n), clients, rng)
    assert len(shares) == clients and all(len(share) for share in shares)
    return [rng.permutation(share) for share in shares]


def check_size(examples: int, clients: int, min_examples: int) -> None:
    """Raise UserError when there are too few examples for so many clients."""
    if examples < clients * min_examples:
        raise UserError(
            f"{examples} examples cannot give {clients} clients {min_examples} each; "
            f"take at most {examples // min_examples} clients or lower min_examples"
        )
