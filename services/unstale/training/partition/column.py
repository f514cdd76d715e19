"""Partition `column`: a column of the user's data contains the client."""

from typing import ClassVar

import numpy as np
from typing_extensions import override

from unstale.errors import UserError
from unstale.seeds import Generator
from unstale.training.partition.interface import Examples, Indices, Partition
from unstale.training.partition.natural import members


class Column(Partition):
    """Each of the exactly N values of the column is a client, in ascending order. A client may have one example."""

    source: ClassVar[str] = "ours, docs/methods/partitions.md#column"
    by_group: ClassVar[bool] = True

    @override
    def check(self, examples: Examples, clients: int) -> None:
        if examples.groups_n is None:
            raise UserError(
                "partition 'column' needs a column of the data that names each example's client, and none is there; "
                "set data.column"
            )
        values = len(np.unique(examples.groups_n))
        if values != clients:
            raise UserError(
                f"clients is {clients}, but the column that names the client has {values} values; "
                f"expected clients {values}"
            )

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        assert examples.groups_n is not None
        return members(examples, np.unique(examples.groups_n))
