"""Data that changes while clients train: examples are replaced one by one.

Source: Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#changing-data

Legend: N clients, n old examples, m new ones, C classes.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from unstale.errors import UserError
from unstale.seeds import Generator, Stream, stream
from unstale.training.partition.interface import Examples, Indices, label_counts

NEW_EXAMPLES, ORDER = 1, 2  # part of the key of the stream
DENOMINATOR_MAX = 1_000_000  # a rate is a fraction such as 1/3, which no float equals


class VariantStream:
    """The examples of each client at epoch t: new ones have replaced floor(q t) of the initial ones.

    The order of replacement is random. A new example has the class of the old one, and no client gets it twice. No two
    clients get the same new example while a class has as many new examples as all clients have old ones.

    The examples depend on seed, client and epoch only, so a stale update can be computed on the data of its base epoch.
    """

    def __init__(
        self,
        partitions: Sequence[Indices],
        labels_n: NDArray[np.integer],
        new_labels_m: NDArray[np.integer],
        *,
        rate: float | Fraction,
        seed: int,
    ) -> None:
        """partitions: initial examples of each client. rate: q, examples per epoch, > 0.

        Raises UserError if the rate is more than any client holds, or a class has fewer new examples than a client
        needs.
        """
        self._partitions = partitions
        self._labels_n = labels_n
        self._rate = Fraction(rate).limit_denominator(DENOMINATOR_MAX)
        self._seed = seed
        assert self._rate > 0
        largest = max(map(len, partitions))
        if self._rate > largest:
            raise UserError(
                f"data.variant.rate is {float(rate):g}, but no client holds more than {largest} examples, so all would "
                f"be replaced at once; expected at most {largest}"
            )
        new = Examples(new_labels_m)
        classes = max(int(labels_n.max()) + 1, new.classes)
        self._new = [self._rng(NEW_EXAMPLES, label).permutation(new.of_class(label)) for label in range(classes)]
        held_NC = label_counts(partitions, labels_n, classes)
        self._before_NC = np.cumsum(held_NC, axis=0) - held_NC
        for label, own in enumerate(self._new):
            most = int(held_NC[:, label].max())
            if most > len(own):
                raise UserError(
                    f"a client holds {most} examples of class {label}, but there are only {len(own)} new ones to "
                    "replace them in the data set of data.variant; let clients hold fewer, or take data with more "
                    "examples of this class"
                )

    def _rng(self, *key: int) -> Generator:
        return stream(self._seed, Stream.PARTITION, *key)

    def count(self, client_id: int, epoch: int) -> int:
        """Number of the client's examples that are replaced at this epoch."""
        return int(min(self._rate * epoch // 1, len(self._partitions[client_id])))

    def replacements(self, client_id: int) -> tuple[Indices, Indices]:
        """All positions in the client's share, in the order of replacement, and the new example for each."""
        labels = self._labels_n[self._partitions[client_id]]
        successors = np.empty(len(labels), dtype=np.int64)  # by position: the client's own slice of its class
        for label in np.unique(labels):
            own = np.flatnonzero(labels == label)
            offsets = self._before_NC[client_id, label] + np.arange(len(own))
            successors[own] = self._new[label][offsets % len(self._new[label])]
        positions = self._rng(ORDER, client_id).permutation(len(labels))
        return positions, successors[positions]

    def indices(self, client_id: int, epoch: int) -> Indices:
        """The client's examples by position: i < n is the old example i, n + j the new example j."""
        replaced = self.count(client_id, epoch)
        positions, new = self.replacements(client_id)
        indices = self._partitions[client_id].copy()
        indices[positions[:replaced]] = len(self._labels_n) + new[:replaced]
        return indices
