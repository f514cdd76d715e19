"""Examples and labels in a training and a test part, as they are stored and as a model sees them.

Legend: N training examples, M test examples, L later ones, n some of them, X the shape of one example (channels
first), C channels.
"""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unstale.errors import UserError

Indices = Tensor | NDArray[np.int64]
Constants = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel."""

BRIGHTEST = 255
_EXAMPLES_AT_A_TIME = 4096  # bounds what counting pixels needs beside the data


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalisation:
    """What a model sees of a stored number: (x / divisor - mean) / std, in float32 and in this order.

    mean_C, std_C: one for each channel, or none at all: then (x / divisor).
    """

    divisor: float = 1
    mean_C: tuple[float, ...] = ()
    std_C: tuple[float, ...] = ()

    def __call__(self, stored_nX: Tensor) -> Tensor:
        """Stored examples as float32 of the same shape; the argument is not written to."""
        inputs_nX = stored_nX.to(torch.float32, copy=self != Normalisation())
        if self.divisor != 1:
            inputs_nX.div_(self.divisor)
        if self.mean_C:
            over_channels = (-1, *(1,) * (inputs_nX.ndim - 2))
            inputs_nX.sub_(torch.tensor(self.mean_C, dtype=torch.float32).reshape(over_channels))
            inputs_nX.div_(torch.tensor(self.std_C, dtype=torch.float32).reshape(over_channels))
        return inputs_nX


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """Training examples that take the place of a data set's own while clients train on it.

    stored_LX, labels_L: as in `Dataset`, with examples of its shape. rate: how many of a client's examples give way at
    each version, > 0.
    """

    stored_LX: Tensor
    labels_L: Tensor
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set whose parts fit together; UserError says what does not.

    stored_*: uint8 as decoded (a quarter of float32's memory) or float32, finite; on the CPU, never written to.
    labels_*: int64 in [0, classes). groups_*: int64, who an example is from (a writer, a celebrity, the value of a
    column) as a number that means the same in both parts, or None. levels: the byte that stands for 1. normalisation:
    applied when examples are gathered. origin: where it lies, for people. later: None where data stays.
    """

    name: str
    classes: int
    stored_train_NX: Tensor
    labels_train_N: Tensor
    stored_test_MX: Tensor
    labels_test_M: Tensor
    groups_train_N: Tensor | None = None
    groups_test_M: Tensor | None = None
    levels: int = BRIGHTEST
    normalisation: Normalisation = Normalisation()
    origin: str = ""
    later: Later | None = None

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise self._wrong(f"has {self.classes} classes, expected at least 2")
        self._check_part("training", self.stored_train_NX, self.labels_train_N, self.groups_train_N)
        self._check_part("test", self.stored_test_MX, self.labels_test_M, self.groups_test_M)
        train, test = _described(self.stored_train_NX[0]), _described(self.stored_test_MX[0])
        if train != test:
            raise self._wrong(f"has training examples of {train}, but test examples of {test}")
        if self.later is not None:
            self._check_part("later", self.later.stored_LX, self.later.labels_L, None)
            later = _described(self.later.stored_LX[0])
            if later != train:
                raise self._wrong(f"has training examples of {train}, but later examples of {later}")
        mean_C, std_C = self.normalisation.mean_C, self.normalisation.std_C
        if len(mean_C) != len(std_C) or len(mean_C) not in (0, 1, self.input_shape[0]) or 0 in std_C:
            raise self._wrong(
                f"has means {list(mean_C)} and deviations {list(std_C)}, expected one for each of "
                f"{self.input_shape[0]} channels"
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """X, the shape of one example."""
        return tuple(self.stored_train_NX.shape[1:])

    @property
    def labels_digest(self) -> str:
        """SHA-256, in hex, of the training labels and groups, and of the later labels and their rate: whether two
        machines share out the same examples.
        """
        digest = hashlib.sha256(self.labels_train_N.numpy().astype("<i8").tobytes())
        if self.groups_train_N is not None:
            digest.update(self.groups_train_N.numpy().astype("<i8").tobytes())
        if self.later is not None:
            digest.update(self.later.labels_L.numpy().astype("<i8").tobytes())
            digest.update(np.float64(self.later.rate).astype("<f8").tobytes())
        return digest.hexdigest()

    def train_examples(self, indices_n: Indices | None = None) -> Tensor:
        """These training examples (None: all) as a model sees them: float32 [n, ...], on the CPU."""
        return self._gathered(self.stored_train_NX, indices_n)

    def test_examples(self, indices_n: Indices | None = None) -> Tensor:
        """These test examples (None: all) as a model sees them: float32 [n, ...], on the CPU."""
        return self._gathered(self.stored_test_MX, indices_n)

    def later_examples(self, indices_n: Indices | None = None) -> Tensor:
        """These later examples (None: all) as a model sees them: float32 [n, ...], on the CPU. Only where there are."""
        assert self.later is not None
        return self._gathered(self.later.stored_LX, indices_n)

    def _gathered(self, stored_NX: Tensor, indices_n: Indices | None) -> Tensor:
        if indices_n is not None:
            stored_NX = stored_NX.index_select(0, torch.as_tensor(indices_n))
        return self.normalisation(stored_NX)

    def _check_part(self, part: str, stored_NX: Tensor, labels_N: Tensor, groups_N: Tensor | None) -> None:
        if stored_NX.dtype not in (torch.uint8, torch.float32) or stored_NX.ndim < 2 or 0 in stored_NX.shape:
            raise self._wrong(
                f"has {part} examples of {_described(stored_NX)}, expected uint8 or float32 [N, ...] with N >= 1"
            )
        if stored_NX.dtype == torch.float32 and not bool(stored_NX.isfinite().all()):
            raise self._wrong(f"has {part} examples with NaN or infinity")
        for what, numbers_N in (("labels", labels_N), ("groups", groups_N)):
            if numbers_N is not None and (
                numbers_N.dtype != torch.int64 or numbers_N.shape != stored_NX.shape[:1]
            ):
                raise self._wrong(
                    f"has {part} {what} of {_described(numbers_N)}, expected int64 [{len(stored_NX)}], one for each "
                    "example"
                )
        lowest, highest = int(labels_N.min()), int(labels_N.max())
        if lowest < 0 or highest >= self.classes:
            raise self._wrong(
                f"has {part} labels from {lowest} to {highest}, expected 0 to {self.classes - 1}"
            )

    def _wrong(self, what: str) -> UserError:
        return UserError(f"data set {self.name!r} {what}")


def normalised(dataset: Dataset, how: str, published: Constants | None = None) -> Dataset:
    """The data set with `how` applied: standard, unit or raw.

    standard: bytes over `levels`, less the mean and over the standard deviation of their channel: the published ones,
    else those of the training part. unit: bytes over `levels`. raw: bytes as they are. Floats are kept as they are.
    Raises UserError for floats and `unit`, which does not say what to divide them by.
    """
    if dataset.stored_train_NX.dtype == torch.float32:
        if how == "unit":
            raise UserError(
                f"data set {dataset.name!r} holds floats, which are kept as they are, but normalise is 'unit', "
                "which is for bytes; leave it at 'standard'"
            )
        return dataset
    if how == "raw":
        return dataset
    if how == "unit":
        return replace(dataset, normalisation=Normalisation(divisor=dataset.levels))
    mean_C, std_C = published or measured(dataset.stored_train_NX, dataset.levels)
    return replace(dataset, normalisation=Normalisation(divisor=dataset.levels, mean_C=mean_C, std_C=std_C))


def measured(stored_NX: Tensor, levels: int) -> Constants:
    """Mean and standard deviation of each channel of uint8 examples [N, C, ...], over `levels`, in float64.

    From how often each byte occurs, so that no float copy is made. A channel that never varies has deviation 1: it is
    only centred.
    """
    channels = stored_NX.shape[1]
    counts_C256 = torch.zeros((channels, 256), dtype=torch.int64)
    for stored_nX in torch.split(stored_NX, _EXAMPLES_AT_A_TIME):
        for channel in range(channels):
            counts_C256[channel] += torch.bincount(stored_nX[:, channel].flatten(), minlength=256)
    values_256 = (torch.arange(256, dtype=torch.float32) / levels).double()
    shares_C256 = counts_C256.double() / counts_C256.sum(dim=1, keepdim=True)
    mean_C = shares_C256 @ values_256
    std_C = (shares_C256 * (values_256 - mean_C[:, None]).square()).sum(dim=1).sqrt()
    std_C[std_C == 0] = 1
    return tuple(mean_C.tolist()), tuple(std_C.tolist())


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
