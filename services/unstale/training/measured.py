"""Result of an evaluation, by name, and the metric that a run shows first. Imports no torch."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

METRICS_MAX = 32  # here and below: the wire contract's limits
METRIC_NAME = re.compile(r"[a-z0-9_./-]{1,64}")
EXAMPLES_MAX = 2**63 - 1
LOSS_MAX = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Result of an evaluation."""

    num_examples: int
    metrics: Mapping[str, float]  # means over the examples, by name
    class_accuracy: tuple[float | None, ...] = ()  # of a classification; None for a class without examples


NOT_MEASURED = Measured(num_examples=0, metrics={})
"""The evaluation of a server without test examples."""


@dataclass(frozen=True, slots=True)
class MainMetric:
    """The metric that a run shows first."""

    name: str
    higher_is_better: bool

    def is_better(self, a: float, b: float) -> bool:
        """Whether value a is better than value b."""
        return a > b if self.higher_is_better else a < b


def checked_examples(value: Any) -> int:
    """A number of examples that can be sent. Raises ValueError."""
    number = _number(value)
    if number is None or number != int(number) or not 1 <= number <= EXAMPLES_MAX:
        raise ValueError(f"it returned num_examples {value!r:.80}, expected a whole number >= 1")
    return int(number)


class NotFiniteError(ValueError):
    """A loss or a model is NaN or infinite, as in a training that diverges."""


def checked_loss(value: Any) -> float:
    """A loss that can be sent. Raises ValueError, for a float `NotFiniteError`."""
    number = _scalar(value)
    try:
        if number is not None and abs(float(number)) <= LOSS_MAX:
            return float(number)
    except OverflowError:
        pass
    kind = NotFiniteError if isinstance(number, float) else ValueError
    raise kind(f"it returned loss {value!r:.80}, expected a finite number")


def checked_metrics(metrics: Any) -> dict[str, float]:
    """Metrics that can be sent. Raises ValueError."""
    if not isinstance(metrics, Mapping):
        raise ValueError(f"it returned metrics {metrics!r:.80}, expected a mapping of names to numbers")
    check_names(metrics)
    checked: dict[str, float] = {}
    for name, value in metrics.items():
        if (number := _number(value)) is None:
            raise ValueError(f"it returned {value!r:.80} for metric {name!r}, expected a finite number")
        checked[name] = float(number)
    return checked


def check_names(metrics: Mapping[Any, Any]) -> None:
    """Raise ValueError for metrics that are too many, or whose names cannot be sent."""
    if len(metrics) > METRICS_MAX:
        raise ValueError(f"it returned {len(metrics)} metrics, expected at most {METRICS_MAX}")
    for name in metrics:
        if not (isinstance(name, str) and METRIC_NAME.fullmatch(name)):
            raise ValueError(f"it returned a metric named {name!r:.80}, expected 1 to 64 characters of a-z0-9_./-")


def _number(value: Any) -> int | float | None:
    """A finite number, as `_scalar`; None for another value."""
    number = _scalar(value)
    try:
        return number if number is not None and math.isfinite(number) else None
    except OverflowError:  # an integer that is no float
        return None


def _scalar(value: Any) -> int | float | None:
    """A number, also of NumPy or in a tensor of one element; None for another value."""
    item = getattr(value, "item", None)
    try:
        value = value if item is None else item()
    except (ValueError, RuntimeError):  # several elements
        return None
    return value if isinstance(value, int | float) else None
