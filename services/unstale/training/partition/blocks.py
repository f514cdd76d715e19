"""Partition `blocks`: each client has one class, or two at a border.

Source: Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#blocks
"""

from typing import ClassVar

import numpy as np
from typing_extensions import override

from unstale.seeds import Generator
from unstale.training.partition.interface import Examples, Indices, SizedPartition


class Blocks(SizedPartition):
    """All examples, sorted by label with a stable sort, divided into N consecutive blocks in random order.

    The blocks are equal if N divides the examples; else the first ones are one larger, as in `iid`.
    """

    source: ClassVar[str] = "Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#blocks"

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        blocks = np.array_split(np.argsort(examples.labels_n, kind="stable"), clients)
        return [blocks[block] for block in rng.permutation(clients)]
