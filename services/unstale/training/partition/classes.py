"""Partition `classes`: k classes for each client, all clients with the same number of examples.

Source: FedAR (Jiang et al., 2024), docs/methods/partitions.md#classes

Legend: N clients, C classes, k classes of each client.
"""

from math import gcd
from typing import ClassVar

import numpy as np
from typing_extensions import override

from unstale.errors import UserError
from unstale.seeds import Generator
from unstale.training.partition.interface import Examples, Indices, Partition
from unstale.training.partition.label_count import check_classes


class Classes(Partition):
    """Each class is cut to the size of the rarest, then into k N / C equal shards without remainder.

    Clients in random order take one shard each of the k classes with the most remaining shards, ties at random. So the
    remaining numbers never differ by more than one, and no client gets two shards of one class.
    """

    source: ClassVar[str] = "FedAR (Jiang et al., 2024), docs/methods/partitions.md#classes"
    is_complete: ClassVar[bool] = False
    is_even: ClassVar[bool] = True

    classes: int
    min_examples: int

    @override
    def check(self, examples: Examples, clients: int) -> None:
        classes = examples.classes
        check_classes(self.classes, classes)
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
