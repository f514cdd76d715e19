"""Partition `natural`: a writer or a celebrity is a client.

Source: WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/partitions.md#natural
"""

from typing import ClassVar

import numpy as np
from typing_extensions import override

from unstale.errors import UserError
from unstale.seeds import Generator
from unstale.training.partition.interface import Examples, Indices, Partition


class Natural(Partition):
    """The first N groups of the data, in ascending order, with `min_examples` or more."""

    source: ClassVar[str] = "WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/partitions.md#natural"
    is_complete: ClassVar[bool] = False
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
        return members(examples, self._large_enough(examples)[:clients])


def members(examples: Examples, groups_N: Indices) -> list[Indices]:
    """The examples of each of these groups, ascending, after one sort of the data. groups_N: all different."""
    assert examples.groups_n is not None
    by_group = np.argsort(examples.groups_n, kind="stable")
    sorted_n = examples.groups_n[by_group]
    first_N = np.searchsorted(sorted_n, groups_N, side="left")
    after_N = np.searchsorted(sorted_n, groups_N, side="right")
    return [by_group[first:after] for first, after in zip(first_N, after_N, strict=True)]
