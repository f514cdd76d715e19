"""The examples of a client: tensors on the device of the model, or a data set that is read when it is needed.

Legend: n examples, b of them in a batch.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, default_collate
from typing_extensions import override

from unstale.errors import UserError
from unstale.training.nests import Nest, mapped, split, tensors

log = logging.getLogger("unstale.training")

Batch = tuple[Nest, Nest]
"""Inputs and targets, nests of tensors whose first dimension is b."""


class ReadError(UserError):
    """Examples of the user's data set cannot be read."""


class Examples(ABC):
    """Examples by index, from 0 to n - 1."""

    device: torch.device  # of indices
    in_order: bool = False  # examples can only be read in order

    @abstractmethod
    def __len__(self) -> int:
        """n"""

    @abstractmethod
    def batch(self, indices_b: Tensor) -> Batch:
        """The examples at these indices, on the device of the model. Raises ReadError."""

    def batches(self, size: int) -> Iterator[Batch]:
        """All examples in order, in batches of at most this size."""
        for indices_b in torch.split(torch.arange(len(self), device=self.device), size):
            yield self.batch(indices_b)


@dataclass(frozen=True, slots=True)
class Count:
    """A number of examples, and the device of their indices: as much as mini-batches depend on."""

    examples: int
    device: torch.device

    def __len__(self) -> int:
        return self.examples


class TensorExamples(Examples):
    """Tensors on the device of the model."""

    def __init__(self, inputs: Nest, targets: Nest) -> None:
        """inputs, targets: nests of tensors [n, ...]."""
        self.inputs, self.targets = inputs, targets
        first = next(tensors((targets, inputs)))
        self.device, self._count = first.device, len(first)

    @override
    def __len__(self) -> int:
        return self._count

    @override
    def batch(self, indices_b: Tensor) -> Batch:
        def select(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, indices_b)

        return mapped(select, self.inputs), mapped(select, self.targets)

    @override
    def batches(self, size: int) -> Iterator[Batch]:
        return zip(split(self.inputs, size), split(self.targets, size), strict=True)


class Pool:
    """Examples of all clients of a labelled data set as two tensors on one device. A client's rows are consecutive.

    Attributes:
        inputs: [N, ...] float32. A row has no value before `put`.
        targets: [N] int64.
        starts: First row by client.
    """

    def __init__(self, counts: Mapping[int, int], input_shape: Sequence[int], device: torch.device) -> None:
        """counts: n by client."""
        total = sum(counts.values())
        self.inputs = torch.empty(total, *input_shape, device=device)
        self.targets = torch.empty(total, dtype=torch.int64, device=device)
        self.starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
        self.device = device

    def put(self, client_id: int, examples: TensorExamples) -> TensorExamples:
        """Copy the examples of a client into its rows; the rows."""
        rows = slice(self.starts[client_id], self.starts[client_id] + len(examples))
        self.inputs[rows].copy_(examples.inputs)
        self.targets[rows].copy_(examples.targets)
        return TensorExamples(self.inputs[rows], self.targets[rows])


class LazyExamples(Examples):
    """Some examples of a data set, read and collated when a batch needs them."""

    def __init__(self, dataset: Dataset[Any], indices_n: NDArray[np.int64], device: torch.device) -> None:
        """dataset: with `__getitem__`, of (inputs, targets). indices_n: of the examples. device: of the model."""
        self.device = torch.device("cpu")
        self._dataset, self._indices_n, self._model_device = dataset, indices_n, device

    @override
    def __len__(self) -> int:
        return len(self._indices_n)

    @override
    def batch(self, indices_b: Tensor) -> Batch:
        return collated([self._at(int(self._indices_n[i])) for i in indices_b.tolist()], self._model_device)

    def _at(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except Exception as error:
            raise _unreadable(index, error) from error


class OrderedExamples(Examples):
    """An iterable data set, read in order: a batch before the last one starts the reading again."""

    in_order = True

    def __init__(self, dataset: Iterable[Any], device: torch.device) -> None:
        """dataset: of (inputs, targets); read once to count the examples where it has no length. device: of the model.

        Raises UserError for a data set without examples.
        """
        self.device = torch.device("cpu")
        self._dataset, self._model_device = dataset, device
        self._count = len(dataset) if isinstance(dataset, Sized) else sum(1 for _ in dataset)
        if not self._count:
            raise UserError("the iterable data set has no examples, expected at least one")
        self._iterator: Iterator[Any] = iter(())
        self._next = self._count  # index of the next example of the iterator

    @override
    def __len__(self) -> int:
        return self._count

    @override
    def batch(self, indices_b: Tensor) -> Batch:
        return collated([self._at(index) for index in indices_b.tolist()], self._model_device)

    def _at(self, index: int) -> Any:
        try:
            if index < self._next:
                self._iterator, self._next = iter(self._dataset), 0
            for example in self._iterator:
                self._next += 1
                if self._next > index:
                    return example
        except Exception as error:
            raise _unreadable(self._next, error) from error
        raise ReadError(
            f"the iterable data set ended after {self._next} examples, expected {self._count}, as it had before"
        )


def _unreadable(index: int, error: Exception) -> ReadError:
    """Log the traceback, which is of the user's code."""
    log.error("example %d of the data set cannot be read", index, exc_info=error)
    return ReadError(f"example {index} of the data set cannot be read ({type(error).__name__}: {error})")


def collated(examples: Sequence[Any], device: torch.device) -> Batch:
    """A batch of examples, each a pair of inputs and targets, on a device. Raises ReadError for other examples."""
    try:
        batch = default_collate(list(examples))
        inputs, targets = batch
    except (TypeError, RuntimeError, ValueError) as error:
        raise ReadError(
            f"the examples of the data set make no batch ({' '.join(str(error).split())[:200]}); expected pairs of "
            "inputs and targets, of numbers, arrays or tensors of one shape, or tuples and dicts of them"
        ) from error

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device)

    return mapped(move, inputs), mapped(move, targets)
