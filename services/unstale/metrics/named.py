"""Metrics by name: their splits, their order, and which of two values is better. Pure."""

from collections.abc import Iterable, Mapping

from unstale.training.measured import MainMetric

CENTRAL = "central"  # on the test set of the server
CLIENTS = "clients"  # mean over the clients' last own evaluations
TRAINING = "training"  # mean over the updates of the last round
POLICY = "policy"  # of policy and compensator


def in_order(metrics: Mapping[str, float], main: MainMetric) -> dict[str, float]:
    """The metrics with the main one first; the others keep their order."""
    first = {main.name: metrics[main.name]} if main.name in metrics else {}
    return {**first, **metrics}


def direction(name: str, main: MainMetric) -> bool | None:
    """Whether a higher value of a metric is better; None where nobody says so."""
    return {"accuracy": True, "loss": False, main.name: main.higher_is_better}.get(name)


def two_of(names: Iterable[str]) -> tuple[str, ...]:
    """The metrics that have columns or curves: the first one, and the loss, or the next one where that is not later."""
    first, others = [*dict.fromkeys(names)][:1], [*dict.fromkeys(names)][1:]
    return (*first, *(["loss"] if "loss" in others else others[:1]))
