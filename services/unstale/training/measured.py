"""Results of an evaluation, by the names of their metrics."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Result of an evaluation of a model on examples."""

    num_examples: int
    metrics: Mapping[str, float]  # means over the examples, or functions of them; classification: accuracy, loss [nats]
    class_accuracy: tuple[float | None, ...] = ()  # classification: of each class; None for a class without examples


@dataclass(frozen=True, slots=True)
class MainMetric:
    """The metric that a run shows first and compares models by."""

    name: str
    higher_is_better: bool

    def is_better(self, a: float, b: float) -> bool:
        """Whether the value `a` is better than `b`; not for equal values, nor where one of them is NaN."""
        return a > b if self.higher_is_better else a < b
