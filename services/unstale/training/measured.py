"""Result of an evaluation, by name, and the metric that a run shows first. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Result of an evaluation."""

    num_examples: int
    metrics: Mapping[str, float]  # means over the examples, by name
    class_accuracy: tuple[float | None, ...] = ()  # of a classification; None for a class without examples


@dataclass(frozen=True, slots=True)
class MainMetric:
    """The metric that a run shows first."""

    name: str
    higher_is_better: bool

    def is_better(self, a: float, b: float) -> bool:
        """Whether value a is better than value b."""
        return a > b if self.higher_is_better else a < b
