"""Partitions `iid`, `dirichlet`, `dirichlet-client` and `slow-class`.

Legend: N clients, n_c examples of class c, C classes.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator
from typing_extensions import override

from unstale.errors import UserError
from unstale.seeds import Generator
from unstale.training.partition.interface import Examples, Indices, Partition, SizedPartition, check_size


class Iid(SizedPartition):
    """A permutation of all examples, divided into N nearly equal consecutive parts, the first ones one larger.

    Source: docs/methods/partitions.md#iid
    """

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        return np.array_split(rng.permutation(len(examples)), clients)


class Dirichlet(SizedPartition):
    """For each class, shuffle its examples, draw q ~ Dirichlet(alpha * 1_N), and cut them at

        floor(cumsum(q) * n_c)

    so that clients differ in number of examples and in classes. Then each client with fewer than `min_examples` gets
    random ones of the client with the most. alpha = infinity is `iid`.
    Source: FedHist (Jiang et al., 2023), docs/methods/partitions.md#dirichlet
    """

    alpha: float

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        if self.alpha == np.inf:
            return Iid(min_examples=self.min_examples).partitions(examples, clients, rng)
        indices: list[list[int]] = [[] for _ in range(clients)]
        for label in range(examples.classes):
            _deal_class(examples.of_class(label), indices, rng, self.alpha)
        _repair(indices, rng, self.min_examples)
        return _as_indices(indices)


class DirichletClient(Partition):
    """Client i draws q_i ~ Dirichlet(alpha * 1_C) and gets floor(budget * q_ic) examples of each class c.

    Clients in order take examples from the shuffled list of a class until it is empty, so the last clients may get few.
    Each client with fewer than `min_examples` then gets unused examples of any class, or, without unused ones, those of
    the client with the most. alpha = infinity for floor(budget / C) of each class.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#dirichlet-client
    """

    alpha: float
    budget: int
    min_examples: int

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.min_examples > self.budget:
            raise UserError(
                f"partition.min_examples is {self.min_examples}, expected at most partition.budget, {self.budget}"
            )
        return self

    @override
    def check(self, examples: Examples, clients: int) -> None:
        check_size(len(examples), clients, self.min_examples)
        if len(examples) < clients * self.budget:
            raise UserError(
                f"partition.budget is {self.budget}, but {len(examples)} examples cannot give {clients} clients "
                f"so many each; lower it to at most {len(examples) // clients}, or take fewer clients"
            )

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        classes = [rng.permutation(examples.of_class(label)) for label in range(examples.classes)]
        shares_NC = np.stack([_proportions(examples.classes, rng, self.alpha) for _ in range(clients)])
        counts_NC = np.floor(self.budget * shares_NC).astype(np.int64)
        indices: list[list[int]] = [[] for _ in range(clients)]
        unused: list[int] = []
        for class_n, counts_N in zip(classes, counts_NC.T, strict=True):
            *parts, left_n = np.split(class_n, np.cumsum(counts_N))
            for own, part in zip(indices, parts, strict=True):
                own.extend(part.tolist())
            unused.extend(left_n[::-1].tolist())  # the seed gives the same examples in this order only
        _repair(indices, rng, self.min_examples, spare=unused)
        return _as_indices(indices)


class SlowClass(Partition):
    """All classes but one as in `dirichlet`; that one among the slow clients only.

    Every client gets `min_examples` of the other classes first, so that the one class stays with the slow clients.
    alpha = infinity for equal parts.
    Source: FedHist (Jiang et al., 2023), docs/methods/partitions.md#slow-class
    """

    alpha: float
    slow_share: float
    slow_class: int | None
    min_examples: int

    @override
    def check(self, examples: Examples, clients: int) -> None:
        label = self._label(examples)
        if label >= examples.classes:
            raise UserError(
                f"partition.slow_class is {label}, but the data has {examples.classes} classes; "
                f"expected 0 to {examples.classes - 1}"
            )
        check_size(len(examples) - int(examples.counts_C[label]), clients, self.min_examples)

    def _label(self, examples: Examples) -> int:
        return examples.classes - 1 if self.slow_class is None else self.slow_class

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        indices: list[list[int]] = [[] for _ in range(clients)]
        for label in range(examples.classes):
            if label != self._label(examples):
                _deal_class(examples.of_class(label), indices, rng, self.alpha)
        _repair(indices, rng, self.min_examples)
        slow = [indices[client] for client in slow_clients(clients, self.slow_share)]
        _deal_class(examples.of_class(self._label(examples)), slow, rng, self.alpha)
        return _as_indices(indices)


def slow_clients(clients: int, share: float) -> range:
    """The slow clients: the ceil(share * N) highest ids. share: in (0, 1], as an exact decimal."""
    return range(clients - ceil(Fraction(repr(share)) * clients), clients)


def _proportions(parts: int, rng: Generator, alpha: float) -> NDArray[np.float64]:
    """Proportions with sum 1, drawn from Dirichlet(alpha); infinity for equal ones."""
    return np.full(parts, 1 / parts) if alpha == np.inf else rng.dirichlet(np.full(parts, alpha))


def _deal_class(class_n: Indices, receivers: list[list[int]], rng: Generator, alpha: float) -> None:
    """Append to each list a part of one class, of a size from `_proportions`."""
    examples = rng.permutation(class_n)
    shares_N = _proportions(len(receivers), rng, alpha)
    cuts = np.floor(np.cumsum(shares_N)[:-1] * len(examples)).astype(np.int64)
    for own, part in zip(receivers, np.split(examples, cuts), strict=True):
        own.extend(part.tolist())


def _repair(indices: list[list[int]], rng: Generator, min_examples: int, spare: Sequence[int] = ()) -> None:
    """While a client has too few, give the smallest one a random example: a spare one, then one of the largest client.

    indices: the examples of each client, changed in place. spare: examples of no client.
    """
    unused = list(spare)
    sizes_N = np.array([len(own) for own in indices])
    assert sizes_N.sum() + len(unused) >= len(indices) * min_examples
    # argmin and argmax take the lowest id on ties.
    while sizes_N.min() < min_examples:
        smallest, largest = int(sizes_N.argmin()), int(sizes_N.argmax())
        if unused:
            indices[smallest].append(unused.pop(int(rng.integers(len(unused)))))
        else:
            indices[smallest].append(indices[largest].pop(int(rng.integers(sizes_N[largest]))))
            sizes_N[largest] -= 1
        sizes_N[smallest] += 1


def _as_indices(indices: list[list[int]]) -> list[Indices]:
    return [np.array(own, dtype=np.int64) for own in indices]
