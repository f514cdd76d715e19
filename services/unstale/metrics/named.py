"""Metrics by name: their order. Pure."""

from collections.abc import Mapping

from unstale.training.measured import MainMetric


def in_order(metrics: Mapping[str, float], main: MainMetric) -> dict[str, float]:
    """The metrics with the main one first; the others keep their order."""
    first = {main.name: metrics[main.name]} if main.name in metrics else {}
    return {**first, **metrics}
