"""Partitions of few classes for each client: `blocks`, `classes`, `label-count` and `natural-synthetic`.

Legend: N clients, C classes, k or L classes of one client.
"""

from collections.abc import Iterable
from math import gcd
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator
from typing_extensions import override

from unstale.errors import UserError
from unstale.seeds import Generator
from unstale.training.partition.interface import Examples, Indices, Partition, SizedPartition

SYNTHETIC_MIN, SYNTHETIC_MAX = 5, 20  # classes of a synthetic writer


class Blocks(SizedPartition):
    """All examples, sorted by label with a stable sort, divided into N consecutive blocks in random order.

    The blocks are equal if N divides the examples; else the first ones are one larger, as in `iid`. So each client has
    one class, or two at a border.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#blocks
    """

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        blocks = np.array_split(np.argsort(examples.labels_n, kind="stable"), clients)
        return [blocks[block] for block in rng.permutation(clients)]


class Classes(Partition):
    """Each class is cut to the size of the rarest, then into k N / C equal shards without remainder.

    Clients in random order take one shard each of the k classes with the most remaining shards, ties at random. So the
    remaining numbers never differ by more than one, and no client gets two shards of one class.
    Source: FedAR (Jiang et al., 2024), docs/methods/partitions.md#classes
    """

    is_even: ClassVar[bool] = True

    classes: int
    min_examples: int

    @override
    def check(self, examples: Examples, clients: int) -> None:
        classes = examples.classes
        _check_classes(self.classes, classes)
        if self.classes * clients % classes:
            step = classes // gcd(self.classes, classes)
            raise UserError(
                f"partition 'classes' needs clients * partition.classes to be a multiple of the {classes} classes, "
                f"got {clients} * {self.classes} = {clients * self.classes}; take a multiple of {step} clients"
            )
        rarest = int(examples.counts_C.argmin())
        size = self._shard_size(examples, clients)
        if self.classes * size < self.min_examples:
            raise UserError(
                f"class {rarest} has {examples.counts_C[rarest]} examples, which gives {clients} clients with "
                f"{self.classes} classes each {self.classes * size} examples, expected {self.min_examples} or more; "
                "take fewer clients or lower min_examples"
            )

    def _shard_size(self, examples: Examples, clients: int) -> int:
        return int(examples.counts_C.min()) // (self.classes * clients // examples.classes)

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        size = self._shard_size(examples, clients)
        shards_C = [rng.permutation(examples.of_class(label)) for label in range(examples.classes)]
        remaining_C = np.full(examples.classes, self.classes * clients // examples.classes)
        partitions: list[Indices] = [np.empty(0, dtype=np.int64)] * clients
        for client in rng.permutation(clients):
            by_random = rng.permutation(examples.classes)
            taken_k = by_random[np.argsort(-remaining_C[by_random], kind="stable")[: self.classes]]
            remaining_C[taken_k] -= 1
            partitions[client] = np.concatenate(
                [shards_C[label][remaining_C[label] * size :][:size] for label in taken_k]
            )
        return partitions


class _FewLabels(Partition):
    """`label-count` and `natural-synthetic`, except for the number of classes of a client."""

    smallest: int
    largest: int
    pool: int | None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.smallest > self.largest:
            raise UserError(
                f"partition.smallest is {self.smallest}, expected at most partition.largest, {self.largest}"
            )
        return self

    @override
    def check(self, examples: Examples, clients: int) -> None:
        rarest = int(examples.counts_C.argmin())
        available = int(examples.counts_C[rarest])
        pool = available if self.pool is None else min(self.pool, available)
        if self.largest > pool:
            raise UserError(
                f"partition.largest is {self.largest}, but only {pool} examples of class {rarest} can be drawn from, "
                f"and a client may need so many of one class; expected at most {pool}"
            )

    def _draw(self, examples: Examples, classes_N: Iterable[int], rng: Generator) -> list[Indices]:
        """A client for each number of classes, which is drawn immediately before the client."""
        pools = [examples.of_class(label)[: self.pool] for label in range(examples.classes)]
        partitions = []
        for classes in classes_N:
            labels_L = rng.choice(len(pools), size=classes, replace=False)
            size = int(rng.integers(self.smallest, self.largest, endpoint=True))
            weights_L = 1 - rng.random(classes)  # never 0 all together
            counts_L = rounded(size * weights_L / weights_L.sum(), size)
            drawn = [
                rng.choice(pools[label], size=count, replace=False)
                for label, count in zip(labels_L, counts_L, strict=True)
            ]
            partitions.append(np.concatenate(drawn).astype(np.int64))
        return partitions


class LabelCount(_FewLabels):
    """Each client draws L = `classes` distinct classes, a size D ~ U{smallest..largest} and a weight ~ U(0, 1) a class.

    It holds D * weight / (sum of weights) examples of each class, rounded by the largest remainder to the sum D. Draws
    are without replacement within a client and independent of other clients: clients may share examples, and many
    examples may have no client.
    Source: WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/partitions.md#label-count
    """

    classes: int

    @override
    def check(self, examples: Examples, clients: int) -> None:
        _check_classes(self.classes, examples.classes)
        super().check(examples, clients)

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        return self._draw(examples, [self.classes] * clients, rng)


class NaturalSynthetic(_FewLabels):
    """A substitute for `natural` for data without groups; its results are synthetic.

    As `label-count`, with L drawn for each client, uniformly from 5 to 20, at most C.
    Source: ours, docs/methods/partitions.md#natural-synthetic
    """

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        low, high = (min(bound, examples.classes) for bound in (SYNTHETIC_MIN, SYNTHETIC_MAX))
        drawn = (int(rng.integers(low, high, endpoint=True)) for _ in range(clients))
        return self._draw(examples, drawn, rng)


def rounded(parts_L: NDArray[np.float64], total: int) -> Indices:
    """Integers near `parts_L` with sum `total`: the largest remainders are rounded up, ties: the first.

    parts_L: >= 0, with sum `total` except for rounding.
    """
    counts_L = np.floor(parts_L).astype(np.int64)
    by_remainder = np.argsort(counts_L - parts_L, kind="stable")
    counts_L[by_remainder[: total - counts_L.sum()]] += 1
    return counts_L


def _check_classes(count: int, available: int) -> None:
    """Raise UserError if a client would need more classes than the data has."""
    if count > available:
        raise UserError(
            f"partition.classes is {count}, but the data has {available} classes; expected 1 to {available}"
        )
