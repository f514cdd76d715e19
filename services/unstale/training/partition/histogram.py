"""Statistics of the clients of a partition.

Legend: N clients, n examples, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unstale.training.partition.interface import Indices, label_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Minimum, median and maximum over the clients."""

    min: int
    median: float
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Statistics of all clients."""

    clients: int
    examples: int  # n
    held: int  # examples of at least one client
    shared: int  # examples of several clients
    sizes: Spread  # examples per client
    classes: Spread  # classes per client
    # mean over the clients of the total variation distance between the label distribution of the client and of
    # all examples, 0.5 * sum_c |p_ic - p_c|: 0 if all are equal, 1 - 1/C for one of C equal classes each
    distance: float


def summary(partitions: Sequence[Indices], labels_n: NDArray[np.integer], classes: int) -> Summary:
    """Statistics of shares that are not empty. labels_n: in [0, classes)."""
    counts_NC = label_counts(partitions, labels_n, classes)
    sizes_N = counts_NC.sum(axis=1)
    overall_C = np.bincount(labels_n, minlength=classes) / len(labels_n)
    holders_n = np.bincount(np.concatenate(partitions), minlength=len(labels_n))
    return Summary(
        clients=len(partitions),
        examples=len(labels_n),
        held=int((holders_n > 0).sum()),
        shared=int((holders_n > 1).sum()),
        sizes=_spread(sizes_N),
        classes=_spread((counts_NC > 0).sum(axis=1)),
        distance=float(np.abs(counts_NC / sizes_N[:, None] - overall_C).sum(axis=1).mean() / 2),
    )


def _spread(numbers_N: Indices) -> Spread:
    return Spread(min=int(numbers_N.min()), median=float(np.median(numbers_N)), max=int(numbers_N.max()))
