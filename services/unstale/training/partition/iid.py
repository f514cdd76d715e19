"""Partition `iid`: all clients have similar examples.

Source: docs/methods/partitions.md#iid
"""

from typing import ClassVar

import numpy as np
from typing_extensions import override

from unstale.seeds import Generator
from unstale.training.partition.interface import Examples, Indices, SizedPartition


class Iid(SizedPartition):
    """A permutation of all examples, divided into N nearly equal consecutive parts, the first ones one larger."""

    source: ClassVar[str] = "docs/methods/partitions.md#iid"

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        return np.array_split(rng.permutation(len(examples)), clients)
