"""Partition `slow-class`: only slow clients have one of the classes.

Source: FedHist (Jiang et al., 2023), docs/methods/partitions.md#slow-class

Legend: N clients.
"""

from fractions import Fraction
from math import ceil
from typing import ClassVar

from typing_extensions import override

from unstale.errors import UserError
from unstale.seeds import Generator
from unstale.training.partition.dirichlet import as_indices, deal_class, repair
from unstale.training.partition.interface import Examples, Indices, Partition, check_size


class SlowClass(Partition):
    """All classes but one as in `dirichlet`; that one among the slow clients only.

    Every client gets `min_examples` of the other classes first, so that the one class stays with the slow clients.
    alpha = infinity for equal parts.
    """

    source: ClassVar[str] = "FedHist (Jiang et al., 2023), docs/methods/partitions.md#slow-class"

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
                deal_class(examples.of_class(label), indices, rng, self.alpha)
        repair(indices, rng, self.min_examples)
        slow = [indices[client] for client in slow_clients(clients, self.slow_share)]
        deal_class(examples.of_class(self._label(examples)), slow, rng, self.alpha)
        return as_indices(indices)


def slow_clients(clients: int, share: float) -> range:
    """The slow clients: the ceil(share * N) highest ids. share: in (0, 1], as an exact decimal."""
    return range(clients - ceil(Fraction(repr(share)) * clients), clients)
