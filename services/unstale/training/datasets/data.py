"""The interface of the data of a run: training and test examples, and the numbers by which they are divided.

Legend: n examples of a part, X the shape of one example's inputs.
"""

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from unstale.training.examples import Batch, Examples

Part = Literal["train", "test"]


class Data(ABC):
    """Training examples, and test examples if there are any."""

    __slots__ = ()

    name: str
    origin: str  # where the data is stored, for people
    in_order = False  # examples can only be read in order, all of them by one client

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """X; empty for inputs that are not one tensor."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of outputs of a model: classes, or numbers of one example's targets."""

    @property
    @abstractmethod
    def labels_digest(self) -> str | None:
        """SHA-256, in hex, of the numbers on which a division depends: equal on all machines of a run. None without."""

    @abstractmethod
    def has(self, part: Part) -> bool:
        """Whether there are such examples."""

    @abstractmethod
    def labels(self, part: Part) -> NDArray[np.int64]:
        """[n] the class of each example; 0 for all where the data has no classes."""

    @abstractmethod
    def groups(self, part: Part) -> NDArray[np.int64] | None:
        """[n] the source of each example, such as a writer, or None."""

    @abstractmethod
    def examples(self, part: Part, indices_n: NDArray[np.int64] | None, device: torch.device) -> Examples:
        """These examples, None for all, for a model on this device."""

    def first(self, part: Part, count: int) -> Batch:
        """The first examples of a part, at most so many, on the CPU."""
        count = min(count, len(self.labels(part)))
        return self.examples(part, np.arange(count), torch.device("cpu")).batch(torch.arange(count))
