"""Statistics of the clients of a partition.

Legend: N clients, n examples, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unstale.training.partition.interface import Indices


def label_counts(partitions: Sequence[Indices], labels_n: NDArray[np.integer], classes: int) -> Indices:
    """[N, C] int64: examples of each client and class. labels_n: in [0, classes)."""
    return np.stack([np.bincount(labels_n[share], minlength=classes) for share in partitions]).astype(np.int64)


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
    # examples of at least one, and of several clients
    held: int
    shared: int
    # number of examples and of classes per client
    sizes: Spread
    classes: Spread
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


def top_holders(partitions: Sequence[Indices], labels_n: NDArray[np.integer], label: int, count: int) -> list[int]:
    """The `count` clients with the most examples of a class, most first; ties: the higher id.

    count: at most N.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#affected-clients
    """
    assert 0 <= count <= len(partitions)
    held_N = [int((labels_n[share] == label).sum()) for share in partitions]
    return sorted(range(len(partitions)), key=lambda client: (held_N[client], client), reverse=True)[:count]


def block_holders(partitions: Sequence[Indices], labels_n: NDArray[np.integer], label: int) -> list[int]:
    """The clients of partition `blocks` whose block starts with an example of this class, ascending.

    A block is sorted by label, so it starts with its smallest one.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#affected-clients
    """
    return [client for client, share in enumerate(partitions) if int(labels_n[share].min()) == label]
