"""Data sets of the user with any inputs and targets, as PyTorch's data sets give them.

Legend: n examples of a part.
"""

import hashlib
from collections.abc import Iterable, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset
from typing_extensions import override

from unstale.errors import UserError
from unstale.training.datasets.data import Data, Part
from unstale.training.examples import Examples, LazyExamples, OrderedExamples, TensorExamples
from unstale.training.nests import tensors

Torch = TorchDataset[Any]


class OwnData(Data):
    """Training examples, and test examples or None, each a pair of inputs and targets: nests of numbers or tensors.

    A part is one of three kinds:

    - a `TensorDataset`, whose last tensor is the targets: the examples of a client lie on the device of its model;
    - a data set with `__getitem__` and `__len__`: examples are read when a batch needs them;
    - an iterable: examples are read in order, and not shuffled; all of them belong to one client.

    Their number of outputs is `classes`, a number or a list, or else the numbers of one example's targets. A partition
    by classes needs an attribute `labels`, one by groups an attribute `groups`: n integers.
    """

    def __init__(self, name: str, train: Torch | Iterable[Any], test: Torch | Iterable[Any] | None = None) -> None:
        """Raises UserError for a part of another kind, or without examples."""
        self.name, self.origin = name, ""
        self._parts: dict[Part, Any] = {"train": train} if test is None else {"train": train, "test": test}
        self.in_order = _is_ordered(train) or _is_ordered(test)
        self._counts = {part: self._checked(part) for part in self._parts}

    @property
    @override
    def input_shape(self) -> tuple[int, ...]:
        inputs, _ = self.first("train", 1)
        return tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else ()

    @property
    @override
    def labels_digest(self) -> str:
        digest = hashlib.sha256()
        for numbers in (self.labels("train"), self.groups("train")):
            if numbers is not None:
                digest.update(numbers.astype("<i8").tobytes())
        return digest.hexdigest()

    @override
    def has(self, part: Part) -> bool:
        return part in self._parts

    @override
    def labels(self, part: Part) -> NDArray[np.int64]:
        labels_n = self._numbers(part, "labels")
        return np.zeros(self._counts[part], dtype=np.int64) if labels_n is None else labels_n

    @override
    def groups(self, part: Part) -> NDArray[np.int64] | None:
        return self._numbers(part, "groups")

    @override
    def examples(self, part: Part, indices_n: NDArray[np.int64] | None, device: torch.device) -> Examples:
        dataset, count = self._parts[part], self._counts[part]
        if _is_ordered(dataset):
            return OrderedExamples(dataset, device)
        indices_n = np.arange(count) if indices_n is None else indices_n
        if isinstance(dataset, TensorDataset):
            own_n = torch.as_tensor(indices_n)
            *inputs, targets = [tensor.index_select(0, own_n).to(device) for tensor in dataset.tensors]
            return TensorExamples(inputs[0] if len(inputs) == 1 else tuple(inputs), targets)
        return LazyExamples(dataset, indices_n, device)

    @property
    @override
    def outputs(self) -> int:
        classes = getattr(self._parts["train"], "classes", None)
        if isinstance(classes, int):
            return classes
        if isinstance(classes, Sized):
            return len(classes)
        return max(1, sum(tensor[0].numel() for tensor in tensors(self.first("train", 1)[1])))

    def _checked(self, part: Part) -> int:
        """The number of examples of a part."""
        dataset = self._parts[part]
        if _is_ordered(dataset):
            return len(OrderedExamples(dataset, torch.device("cpu")))
        if not (hasattr(dataset, "__getitem__") and isinstance(dataset, Sized)):
            raise UserError(
                f"data set {self.name!r} has {part} examples in a {type(dataset).__name__}, expected one with "
                "__getitem__ and __len__, or an iterable"
            )
        if isinstance(dataset, TensorDataset) and len(dataset.tensors) < 2:
            raise UserError(f"data set {self.name!r} has one tensor of {part} examples, expected inputs and targets")
        if not len(dataset):
            raise UserError(f"data set {self.name!r} has no {part} examples, expected at least one")
        return len(dataset)

    def _numbers(self, part: Part, name: str) -> NDArray[np.int64] | None:
        numbers = getattr(self._parts[part], name, None)
        if numbers is None:
            return None
        count, values = self._counts[part], np.asarray(numbers)
        if values.shape != (count,) or not np.issubdtype(values.dtype, np.integer) or values.min() < 0:
            raise UserError(
                f"data set {self.name!r} has {name} of {values.dtype} {list(values.shape)} for its {part} examples, "
                f"expected {count} integers from 0, one for each example"
            )
        return values.astype(np.int64)


def _is_ordered(dataset: object) -> bool:
    """Whether examples can only be read in order."""
    return isinstance(dataset, IterableDataset) or (
        isinstance(dataset, Iterable) and not hasattr(dataset, "__getitem__")
    )
