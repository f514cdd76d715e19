"""Data that changes while clients train: their examples are replaced one by one.

Source: Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#changing-data

Legend: N clients, n old examples, m new ones, C classes.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from unstale.errors import UserError
from unstale.seeds import Generator, Stream, stream
from unstale.training.partition.histogram import label_counts
from unstale.training.partition.interface import Examples, Indices

NEW_EXAMPLES, ORDER = 1, 2  # which draws; part of the key of the stream
DENOMINATOR_MAX = 1_000_000  # a rate is meant as a fraction such as 1/3, which no float is


class VariantStream:
    """Which examples each client holds at epoch t: floor(q t) of those it began with have given way to new ones.

    They go in a random order. Each is replaced by a new example of its own class, so that the client's labels stay what
    they are, and by one that this client has not been given before. No two clients are given the same one either, as
    long as a class has as many new examples as all clients hold old ones; beyond that they are given out again.

    What a client holds depends on the seed, the client and the epoch alone, and not on what was asked before: a stale
    update is computed on the data of its base epoch by asking for that epoch.
    """

    def __init__(
        self,
        shares: Sequence[Indices],
        labels_n: NDArray[np.integer],
        new_labels_m: NDArray[np.integer],
        *,
        rate: float | Fraction,
        seed: int,
    ) -> None:
        """shares: what each client begins with. rate: q, examples an epoch, > 0. seed: the run's.

        Raises UserError when the rate is more than any client holds, and when the new examples of a class are fewer
        than some client needs.
        """
        self._shares = shares
        self._labels_n = labels_n
        self._rate = Fraction(rate).limit_denominator(DENOMINATOR_MAX)
        self._seed = seed
        assert self._rate > 0
        largest = max(map(len, shares))
        if self._rate > largest:
            raise UserError(
                f"data.variant.rate is {float(rate):g}, but no client holds more than {largest} examples, so all would "
                f"be replaced at once; expected at most {largest}"
            )
        new = Examples(new_labels_m)
        classes = max(int(labels_n.max()) + 1, new.classes)
        self._new = [
            self._rng(NEW_EXAMPLES, label).permutation(new.of_class(label)) for label in range(classes)
        ]
        held_NC = label_counts(shares, labels_n, classes)
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
        """How many of the client's examples are replaced at this epoch."""
        return int(min(self._rate * epoch // 1, len(self._shares[client_id])))

    def replacements(self, client_id: int) -> tuple[Indices, Indices]:
        """Positions in the client's share, and for each the index of the new example that comes there.

        All of them, in the order in which they are replaced: the first `count` of an epoch are replaced there.
        """
        positions = self._rng(ORDER, client_id).permutation(len(self._shares[client_id]))
        return positions, self._successors(client_id)[positions]

    def replaced(self, client_id: int, epoch: int) -> tuple[Indices, Indices]:
        """Those of the `replacements` that are there at this epoch; those of an earlier epoch come first, and stay."""
        done = self.count(client_id, epoch)
        positions, new = self.replacements(client_id)
        return positions[:done], new[:done]

    def indices(self, client_id: int, epoch: int) -> Indices:
        """What the client holds, position by position: i < n is the old example i, n + j the new example j."""
        held = self._shares[client_id].copy()
        positions, new = self.replaced(client_id, epoch)
        held[positions] = len(self._labels_n) + new
        return held

    def _successors(self, client_id: int) -> Indices:
        """For each position of the share the new example that comes there: the client's own stretch of its class."""
        labels = self._labels_n[self._shares[client_id]]
        successors = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            own = np.flatnonzero(labels == label)
            places = self._before_NC[client_id, label] + np.arange(len(own))
            successors[own] = self._new[label][places % len(self._new[label])]
        return successors
