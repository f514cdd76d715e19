"""Training examples of each client, to compare reconstructions with.

Legend: n examples of a client, N training examples of the data set, L later ones, X the shape of one example.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unstale.config.data import ClientData
from unstale.seeds import Generator, Stream, stream
from unstale.training.datasets import Dataset, labelled
from unstale.training.partition import Indices

OTHERS, SAME_CLASSES = 1, 2  # of a draw, in the key of its stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Some training examples. pixels_nX: as `Pixels` makes them. labels_n: their classes."""

    pixels_nX: Tensor
    labels_n: Indices

    def __len__(self) -> int:
        return len(self.labels_n)


class Pixels:
    """Converts inputs of the model to numbers in [0, 1], the range of the data set: of bytes, or of its floats.

    Numbers outside the range, which no example has, become 0 or 1.
    """

    def __init__(self, dataset: Dataset) -> None:
        normal = dataset.normalisation
        over_channels = (-1, *(1,) * (len(dataset.input_shape) - 1))
        self._mean = torch.tensor(normal.mean_C or (0.0,)).reshape(over_channels)
        self._std = torch.tensor(normal.std_C or (1.0,)).reshape(over_channels)
        stored_NX = dataset.train.stored_NX
        if stored_NX.dtype == torch.uint8:
            self._low, self._high = 0.0, dataset.levels / normal.divisor
        else:
            self._low, self._high = float(stored_NX.min()), float(stored_NX.max())

    def __call__(self, inputs_nX: Tensor) -> Tensor:
        """float32 of the same shape, on the CPU."""
        stored_nX = inputs_nX.to("cpu") * self._std + self._mean
        span = self._high - self._low
        return ((stored_nX - self._low) / (span if span > 0 else 1.0)).clamp_(0.0, 1.0)


class ClientExamples:
    """The examples of each client at each version."""

    def __init__(self, client_data: ClientData) -> None:
        dataset = labelled(client_data.data)
        self.pixels = Pixels(dataset)
        self._dataset = dataset
        self._seed = client_data.seed
        self._clients = client_data.clients
        self._shares = client_data.train()
        self._changes = client_data.changes(self._shares)
        later = [] if dataset.later is None else [dataset.later.labels_L]
        self._labels = torch.cat([dataset.train.labels_N, *later]).numpy()

    def own_and_others(self, client_id: int, version: int, task_id: int) -> tuple[Examples, Examples]:
        """Examples of a client, and as many that only other clients hold, drawn at random.

        If the others hold fewer, as many of the client's are drawn: among more examples the closest one is closer, by
        chance.
        """
        rng = stream(self._seed, Stream.INVERSION, client_id, task_id, OTHERS)
        return self._drawn(rng, [self._apart(client_id, version)])

    def own_and_others_of_its_classes(self, client_id: int, version: int, task_id: int) -> tuple[Examples, Examples]:
        """As `own_and_others`, within each class of the client."""
        own, others = self._apart(client_id, version)
        rng = stream(self._seed, Stream.INVERSION, client_id, task_id, SAME_CLASSES)
        of_own, of_others = self._labels[own], self._labels[others]
        return self._drawn(rng, [(own[of_own == label], others[of_others == label]) for label in np.unique(of_own)])

    def _drawn(self, rng: Generator, groups: Iterable[tuple[Indices, Indices]]) -> tuple[Examples, Examples]:
        """As many examples of both sides of each group as the smaller side has."""
        sides: tuple[list[Indices], list[Indices]] = ([], [])
        for group in groups:
            count = min(map(len, group))
            for drawn, examples in zip(sides, group, strict=True):
                drawn.append(rng.choice(examples, count, replace=False))
        own, others = (self._gathered(np.concatenate(drawn)) for drawn in sides)
        return own, others

    def _examples(self, client_id: int, version: int) -> Indices:
        """Index i < N is training example i of the data set, N + j is later example j."""
        if self._changes is None:
            return self._shares[client_id]
        return self._changes.indices(client_id, version)

    def _apart(self, client_id: int, version: int) -> tuple[Indices, Indices]:
        """Examples of a client, and examples of the others."""
        own = self._examples(client_id, version)
        everybodys: Sequence[Indices] = [self._examples(client, version) for client in range(self._clients)]
        return own, np.setdiff1d(np.concatenate(everybodys), own)

    def _gathered(self, indices_n: Indices) -> Examples:
        indices_n = np.sort(indices_n)
        first_n, later_n = np.split(indices_n, [np.searchsorted(indices_n, len(self._dataset.train.labels_N))])
        inputs_nX = self._dataset.train_examples(first_n)
        if len(later_n):
            later_nX = self._dataset.later_examples(later_n - len(self._dataset.train.labels_N))
            inputs_nX = torch.cat([inputs_nX, later_nX])
        return Examples(pixels_nX=self.pixels(inputs_nX), labels_n=self._labels[indices_n])
