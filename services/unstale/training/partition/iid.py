"""Partition `iid`: everybody's examples are alike.

Source: docs/methods/partitions.md#iid
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


class Iid(Partition):
    """One permutation of all examples, cut into N nearly equal consecutive parts, the first ones one larger."""

    source: ClassVar[str] = "docs/methods/partitions.md#iid"

    min_examples: int

    @override
    def check(self, examples: Examples, clients: int) -> None:
        check_size(len(examples), clients, self.min_examples)

    @override
    def shares(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        return np.array_split(rng.permutation(len(examples)), clients)
