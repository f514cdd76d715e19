"""Partition `dirichlet-client`: each client has its own random mixture of classes.

Source: Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#dirichlet-client

Legend: N clients, C classes.
"""

from typing import ClassVar, Self

import numpy as np
from pydantic import model_validator
from typing_extensions import override

from unstale.errors import UserError
from unstale.seeds import Generator
from unstale.training.partition.dirichlet import as_indices, repair
from unstale.training.partition.interface import Examples, Indices, Partition, check_size


class DirichletClient(Partition):
    """Client i draws q_i ~ Dirichlet(alpha * 1_C) and gets floor(budget * q_ic) examples of each class c.

    Clients in order take examples from the shuffled list of a class until it is empty, so the last clients may get few.
    Each client with fewer than `min_examples` then gets unused examples of any class, or, without unused ones, those of
    the client with the most. alpha = infinity for floor(budget / C) of each class.
    """

    source: ClassVar[str] = "Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#dirichlet-client"
    is_complete: ClassVar[bool] = False

    alpha: float
    budget: int
    min_examples: int

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.min_examples > self.budget:
            raise UserError(
                f"partition.min_examples is {self.min_examples}, expected at most partition.budget, {self.budget}"
            )
        return self

    @override
    def check(self, examples: Examples, clients: int) -> None:
        check_size(len(examples), clients, self.min_examples)
        if len(examples) < clients * self.budget:
            raise UserError(
                f"partition.budget is {self.budget}, but {len(examples)} examples cannot give {clients} clients "
                f"so many each; lower it to at most {len(examples) // clients}, or take fewer clients"
            )

    @override
    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        classes = examples.classes
        unused = [rng.permutation(examples.of_class(label)).tolist()[::-1] for label in range(classes)]
        indices: list[list[int]] = []
        for _ in range(clients):
            mixture_C = (
                np.full(classes, 1 / classes) if self.alpha == np.inf else rng.dirichlet(np.full(classes, self.alpha))
            )
            counts_C = np.floor(self.budget * mixture_C).astype(np.int64)
            # The lists are reversed: `pop` takes the first.
            indices.append(
                [
                    own.pop()
                    for own, count in zip(unused, counts_C, strict=True)
                    for _ in range(min(int(count), len(own)))
                ]
            )
        repair(indices, rng, self.min_examples, spare=[index for own in unused for index in own])
        return as_indices(indices)
