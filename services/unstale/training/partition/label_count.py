"""Partitions `label-count` and `natural-synthetic`: small clients with a few classes.

Source: WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/partitions.md#label-count;
docs/methods/partitions.md#natural-synthetic

Legend: N clients, C classes, L classes of one client.
"""

from collections.abc import Iterator
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator
from typing_extensions import override

from unstale.errors import UserError
from unstale.seeds import Generator
from unstale.training.partition.interface import Examples, Indices, Partition

SYNTHETIC_MIN, SYNTHETIC_MAX = 5, 20  # classes of a synthetic writer


class _FewLabels(Partition):
    """Both partitions, except for the number of classes of a client."""

    is_complete: ClassVar[bool] = False
    is_disjoint: ClassVar[bool] = False

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

    def _draw(self, examples: Examples, classes_N: Iterator[int], rng: Generator) -> list[Indices]:
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
    """

    source: ClassVar[str] = "WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/partitions.md#label-count"

    classes: int

    @override
    def check(self, examples: Examples, clients: int) -> None:
        check_classes(self.classes, examples.classes)
        super().check(examples, clients)

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        return self._draw(examples, iter([self.classes] * clients), rng)


class NaturalSynthetic(_FewLabels):
    """A substitute for `natural` for data without groups; its results are synthetic.

    As `label-count`, with L drawn for each client, uniformly from 5 to 20, at most C.
    """

    source: ClassVar[str] = "ours, docs/methods/partitions.md#natural-synthetic"

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


def check_classes(count: int, available: int) -> None:
    """Raise UserError if a client would need more classes than the data has."""
    if count > available:
        raise UserError(
            f"partition.classes is {count}, but the data has {available} classes; expected 1 to {available}"
        )
