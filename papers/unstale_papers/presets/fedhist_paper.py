"""Printed numbers of FedHist's paper, and sources of the settings that it leaves open.

Source: FedHist (Jiang et al., 2023), docs/methods/experiments.md#fedhist-experiments
"""

from unstale_papers import printed
from unstale_papers.preset import Number

DATA = ("FMNIST", "CIFAR-10", "CIFAR-100")
BETAS = ("0.3", "1.0", "IID")

_PAPER = printed.load("fedhist")

ACCURACIES = {
    (*column, ratio, method): Number(float(text) / 100, text)
    for (ratio, method), column, text in _PAPER.tables["accuracy"].cells()
}
"""Table I, final accuracy: by data, beta, N/K and method."""


def _by_beta() -> dict[tuple[str, str], dict[str, Number]]:
    found: dict[tuple[str, str], dict[str, Number]] = {}
    for (method,), (beta, measure), text in _PAPER.tables["speed"].cells():
        found.setdefault((beta, method), {})[measure] = Number(printed.leading_number(text), text)
    return found


SPEEDS = _by_beta()
"""Table II, by measure: by beta and method."""

SETUP = _PAPER.sources("setup")

FEDHIST = _PAPER.sources("fedhist")

BASELINES = _PAPER.sources("baselines")

PARTITIONED = _PAPER.source("partitioned")
SPREAD = (
    "The spread over seeds of the published numbers: none is printed, so which of their differences are noise cannot "
    "be told."
)
