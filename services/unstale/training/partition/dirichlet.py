"""Partition `dirichlet`: each class is divided unevenly.

Source: FedHist (Jiang et al., 2023), docs/methods/partitions.md#dirichlet

Legend: N clients, n_c examples of class c.
"""

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
from typing_extensions import override

from unstale.seeds import Generator
from unstale.training.partition.iid import Iid
from unstale.training.partition.interface import Examples, Indices, SizedPartition


class Dirichlet(SizedPartition):
    """For each class, shuffle its examples, draw q ~ Dirichlet(alpha * 1_N), and cut them at

        floor(cumsum(q) * n_c)

    so that clients differ in number of examples and in classes. Then each client with fewer than `min_examples` gets
    random ones of the client with the most. alpha = infinity is `iid`.
    """

    source: ClassVar[str] = "FedHist (Jiang et al., 2023), docs/methods/partitions.md#dirichlet"

    alpha: float

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        if self.alpha == np.inf:
            return Iid(min_examples=self.min_examples).partitions(examples, clients, rng)
        indices: list[list[int]] = [[] for _ in range(clients)]
        for label in range(examples.classes):
            deal_class(examples.of_class(label), indices, rng, self.alpha)
        repair(indices, rng, self.min_examples)
        return as_indices(indices)


def deal_class(class_n: Indices, indices: Iterable[list[int]], rng: Generator, alpha: float) -> None:
    """Append to each list a part of one class, drawn from Dirichlet(alpha); infinity for equal parts."""
    examples = rng.permutation(class_n)
    receivers = list(indices)
    if alpha == np.inf:
        shares_N = np.full(len(receivers), 1 / len(receivers))
    else:
        shares_N = rng.dirichlet(np.full(len(receivers), alpha))
    cuts = np.floor(np.cumsum(shares_N)[:-1] * len(examples)).astype(np.int64)
    for own, part in zip(receivers, np.split(examples, cuts), strict=True):
        own.extend(part.tolist())


def repair(indices: list[list[int]], rng: Generator, min_examples: int, spare: Iterable[int] = ()) -> None:
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


def as_indices(indices: Iterable[list[int]]) -> list[Indices]:
    """Lists of indices as arrays."""
    return [np.array(own, dtype=np.int64) for own in indices]
