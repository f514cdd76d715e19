"""Partitions `natural` and `column`: a group of the data is a client."""

from typing import ClassVar

import numpy as np
from typing_extensions import override

from unstale.errors import UserError
from unstale.seeds import Generator
from unstale.training.partition.interface import Examples, Indices, Partition


class Natural(Partition):
    """The first N groups of the data (writers, celebrities), in ascending order, with `min_examples` or more.

    Source: WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/partitions.md#natural
    """

    by_group: ClassVar[bool] = True

    min_examples: int

    @override
    def check(self, examples: Examples, clients: int) -> None:
        if examples.groups_n is None:
            raise UserError(
                "partition 'natural' needs data that says whose each example is, and this data does not; "
                "take partition 'natural-synthetic', whose clients are drawn to be like writers"
            )
        enough = len(self._large_enough(examples))
        if enough < clients:
            raise UserError(
                f"{enough} groups of the data have {self.min_examples} or more examples, expected one for each of the "
                f"{clients} clients; take at most {enough} clients or lower min_examples"
            )

    def _large_enough(self, examples: Examples) -> Indices:
        assert examples.groups_n is not None
        groups, sizes = np.unique(examples.groups_n, return_counts=True)
        return groups[sizes >= self.min_examples]

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        return examples.of_groups(self._large_enough(examples)[:clients])


class Column(Partition):
    """Each of the exactly N values of the column is a client, in ascending order. A client may have one example.

    Source: ours, docs/methods/partitions.md#column
    """

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
        return examples.of_groups(np.unique(examples.groups_n))
