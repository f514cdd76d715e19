"""The interface of objectives: the loss that training minimises, and the metrics of an evaluation.

Legend: b examples of a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from unstale.training.measured import MainMetric
from unstale.training.nests import Nest


@dataclass(frozen=True, slots=True)
class Score:
    """A sum over examples and their number, so that batches add up exactly: floats, or tensors of the same shape.

    A tensor on a device is read at the end of the evaluation, a float is read in each batch.
    """

    sum: float | Tensor
    count: float | Tensor

    def __add__(self, other: "Score") -> "Score":
        return Score(self.sum + other.sum, self.count + other.count)

    @property
    def mean(self) -> float:
        """sum / count over all entries; NaN without examples."""
        count = float(_total(self.count))
        return float(_total(self.sum)) / count if count else float("nan")


def scalar(number: Tensor) -> float | Tensor:
    """A number for `Score`: a float, which adds fastest; on CUDA a tensor, which is read after the last batch."""
    if number.device.type != "cuda":
        return number.item()
    return number.double() if number.is_floating_point() else number


def _total(number: float | Tensor) -> float | Tensor:
    return number.sum() if isinstance(number, Tensor) else number


class Objective(BaseModel, ABC):
    """Loss of the training and metrics of evaluations. Fields are the settings of `objective.settings`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    main: ClassVar[MainMetric]
    pass_examples: ClassVar[int] = 32  # in one pass of the model in an evaluation; bounds its memory
    score_passes: ClassVar[int] = 1  # passes whose outputs are scored together

    @abstractmethod
    def loss(self, outputs: Nest, targets: Nest) -> Tensor:
        """The scalar that training minimises: a mean over the batch."""

    @abstractmethod
    def scores(self, outputs: Nest, targets: Nest) -> Mapping[str, Score]:
        """Sums and counts over the examples of a batch, by name."""

    def metrics(self, totals: Mapping[str, Score]) -> Mapping[str, float]:
        """The metrics of all examples, from the scores of all batches, on the host: by default their means."""
        return {name: score.mean for name, score in totals.items()}

    def class_accuracy(self, totals: Mapping[str, Score]) -> tuple[float | None, ...]:  # noqa: ARG002
        """The accuracy on the examples of each class, None for a class without; empty where there are no classes."""
        return ()
