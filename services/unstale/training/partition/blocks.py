"""Partition `blocks`: each client one class, or two at a border.

Source: Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#blocks
"""

from typing import ClassVar

import numpy as np
from typing_extensions import override

from unstale.seeds import Generator
from unstale.training.partition.interface import (
    Examples,
    Indices,
    Partition,
    check_size,
)


class Blocks(Partition):
    """All examples, sorted by label and else in their order, cut into N consecutive blocks, dealt in random order.

    The blocks are equal where N divides the examples; else the first ones are one larger, as in `iid`.
    """

    source: ClassVar[str] = "Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#blocks"

    min_examples: int

    @override
    def check(self, examples: Examples, clients: int) -> None:
        check_size(len(examples), clients, self.min_examples)

    @override
    def shares(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        blocks = np.array_split(np.argsort(examples.labels_n, kind="stable"), clients)
        return [blocks[block] for block in rng.permutation(clients)]
