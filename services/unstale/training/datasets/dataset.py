"""Examples and labels of a training and a test split, as stored and as a model sees them.

Legend: N examples of a split, L later ones, n some of them, X the shape of one example (channels first), C channels.
"""

import hashlib
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from unstale.errors import UserError
from unstale.training.datasets.data import Data, Part
from unstale.training.examples import TensorExamples

Indices = Tensor | NDArray[np.int64]
Constants = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel."""

BRIGHTEST = 255
_COUNTED_TOGETHER = 4096  # examples; limits the memory for counting pixels
_DIGITS = 9  # a share of a number of examples is rounded to so many before it is rounded up


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalisation:
    """Model inputs from stored numbers: (x / divisor - mean) / std, in float32 and in this order.

    mean_C, std_C: one for each channel, or none at all: then (x / divisor).
    """

    divisor: float = 1
    mean_C: tuple[float, ...] = ()
    std_C: tuple[float, ...] = ()

    def __call__(self, stored_nX: Tensor) -> Tensor:
        """Stored examples as float32 of the same shape. Does not write to the argument."""
        inputs_nX = stored_nX.to(torch.float32, copy=self != Normalisation())
        if self.divisor != 1:
            inputs_nX.div_(self.divisor)
        if self.mean_C:
            over_channels = (-1, *(1,) * (inputs_nX.ndim - 2))
            inputs_nX.sub_(torch.tensor(self.mean_C, dtype=torch.float32).reshape(over_channels))
            inputs_nX.div_(torch.tensor(self.std_C, dtype=torch.float32).reshape(over_channels))
        return inputs_nX


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The training or the test examples of a data set, on the CPU and read-only."""

    stored_NX: Tensor  # uint8 as decoded (a quarter of float32's memory) or finite float32
    labels_N: Tensor  # int64, from 0 to the number of classes - 1
    # int64, the source of each example (a writer, a celebrity, a value of a column), or None
    groups_N: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels_N)

    def at(self, indices_n: Tensor | slice) -> "Split":
        """The examples at these indices."""
        return Split(
            stored_NX=self.stored_NX[indices_n],
            labels_N=self.labels_N[indices_n],
            groups_N=None if self.groups_N is None else self.groups_N[indices_n],
        )

    def defect(self, name: str, classes: int) -> str | None:
        """The reason why a data set cannot have this split, or None. name: of the split, such as `training`."""
        stored_NX = self.stored_NX
        if stored_NX.dtype not in (torch.uint8, torch.float32) or stored_NX.ndim < 2 or 0 in stored_NX.shape:
            return f"has {name} examples of {described(stored_NX)}, expected uint8 or float32 [N, ...] with N >= 1"
        if stored_NX.dtype == torch.float32 and not bool(stored_NX.isfinite().all()):
            return f"has {name} examples with NaN or infinity"
        for noun, numbers_N in (("labels", self.labels_N), ("groups", self.groups_N)):
            if numbers_N is not None and (numbers_N.dtype != torch.int64 or numbers_N.shape != (len(stored_NX),)):
                return (
                    f"has {name} {noun} of {described(numbers_N)}, expected int64 [{len(stored_NX)}], one for each "
                    "example"
                )
        lowest, highest = int(self.labels_N.min()), int(self.labels_N.max())
        if not 0 <= lowest <= highest < classes:
            return f"has {name} labels from {lowest} to {highest}, expected 0 to {classes - 1}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """Training examples, as in `Split`, that gradually replace those of a data set while clients train."""

    stored_LX: Tensor
    labels_L: Tensor
    rate: float  # examples that each client replaces per version, > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset(Data):
    """A data set. Raises UserError if its parts do not fit together."""

    name: str
    classes: int
    # a number in `groups_N` means the same source in both
    train: Split
    test: Split
    levels: int = BRIGHTEST  # the byte that stands for 1
    normalisation: Normalisation = Normalisation()  # applied when examples are gathered
    origin: str = ""  # where the data set is stored, for people
    later: Later | None = None  # None for data that does not change

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise self._error(f"has {self.classes} classes, expected at least 2")
        splits = {"training": self.train, "test": self.test}
        if self.later is not None:
            splits["later"] = Split(stored_NX=self.later.stored_LX, labels_N=self.later.labels_L)
        for name, split in splits.items():
            if (defect := split.defect(name, self.classes)) is not None:
                raise self._error(defect)
            train, other = described(self.train.stored_NX[0]), described(split.stored_NX[0])
            if train != other:
                raise self._error(f"has training examples of {train}, but {name} examples of {other}")
        mean_C, std_C = self.normalisation.mean_C, self.normalisation.std_C
        if len(mean_C) != len(std_C) or len(mean_C) not in (0, 1, self.input_shape[0]) or 0 in std_C:
            raise self._error(
                f"has means {list(mean_C)} and deviations {list(std_C)}, expected one for each of "
                f"{self.input_shape[0]} channels"
            )

    @property
    @override
    def input_shape(self) -> tuple[int, ...]:
        """X, the shape of one example."""
        return tuple(self.train.stored_NX.shape[1:])

    @property
    @override
    def outputs(self) -> int:
        return self.classes

    @property
    @override
    def labels_digest(self) -> str:
        """SHA-256, in hex, of the training labels and groups, and of the later labels and their rate.

        Machines with the same digest give clients the same examples.
        """
        parts = [self.train.labels_N, self.train.groups_N, None if self.later is None else self.later.labels_L]
        digest = hashlib.sha256()
        for numbers in parts:
            if numbers is not None:
                digest.update(numbers.numpy().astype("<i8").tobytes())
        if self.later is not None:
            digest.update(np.float64(self.later.rate).astype("<f8").tobytes())
        return digest.hexdigest()

    @override
    def has(self, part: Part) -> bool:
        return True

    @override
    def labels(self, part: Part) -> NDArray[np.int64]:
        return self._split(part).labels_N.numpy()

    @override
    def groups(self, part: Part) -> NDArray[np.int64] | None:
        groups_N = self._split(part).groups_N
        return None if groups_N is None else groups_N.numpy()

    @override
    def examples(self, part: Part, indices_n: NDArray[np.int64] | None, device: torch.device) -> TensorExamples:
        split = self._split(part)
        labels_n = split.labels_N if indices_n is None else split.labels_N.index_select(0, torch.as_tensor(indices_n))
        inputs_nX = self.train_examples(indices_n) if part == "train" else self.test_examples(indices_n)
        return TensorExamples(inputs_nX.to(device), labels_n.to(device))

    def _split(self, part: Part) -> Split:
        return self.train if part == "train" else self.test

    def train_examples(self, indices_n: Indices | None = None) -> Tensor:
        """These training examples (None: all) as model inputs: float32 [n, ...], on the CPU."""
        return self._gathered(self.train.stored_NX, indices_n)

    def test_examples(self, indices_n: Indices | None = None) -> Tensor:
        """These test examples (None: all) as model inputs: float32 [n, ...], on the CPU."""
        return self._gathered(self.test.stored_NX, indices_n)

    def later_examples(self, indices_n: Indices | None = None) -> Tensor:
        """These later examples (None: all) as model inputs: float32 [n, ...], on the CPU."""
        assert self.later is not None
        return self._gathered(self.later.stored_LX, indices_n)

    def _gathered(self, stored_NX: Tensor, indices_n: Indices | None) -> Tensor:
        if indices_n is not None:
            stored_NX = stored_NX.index_select(0, torch.as_tensor(indices_n))
        return self.normalisation(stored_NX)

    def _error(self, defect: str) -> UserError:
        return UserError(f"data set {self.name!r} {defect}")


def part(data: Dataset, *, share: float) -> Dataset:
    """The first `share` of each class of both splits, in order.

    share: in (0, 1]; the number of examples is rounded up, so that every class remains.
    """
    if share == 1:
        return data
    train, test = (split.at(_is_first(split.labels_N, data.classes, share)) for split in (data.train, data.test))
    return replace(data, train=train, test=test)


def with_validation(data: Dataset, share: float) -> Dataset:
    """The last `share` of each training class as the test split, and the rest as the training split.

    Where the test set is of the training groups, the last `share` of each group instead, as a group's examples may be
    unlike those of others. share: in (0, 1); the number of examples is rounded up of a class, and down of a group, so
    that no group is lost. Raises UserError if no example remains to train or to evaluate on.
    """
    groups_N = _groups_of_both(data)
    if groups_N is None:
        is_last_N = _is_first(data.train.labels_N.flip(0), data.classes, share).flip(0)
    else:
        is_last_N = _is_last(groups_N, share)
    if is_last_N.all():
        raise UserError(f"data.validation is {share:g}, which leaves no example to train on; make it smaller")
    if not is_last_N.any():
        raise UserError(f"data.validation is {share:g}, which leaves no example to evaluate on; make it larger")
    return replace(data, train=data.train.at(~is_last_N), test=data.train.at(is_last_N))


def _groups_of_both(data: Dataset) -> Tensor | None:
    """[N], the groups of the training examples, if each test example is of one of them; else None."""
    train_N, test_N = data.train.groups_N, data.test.groups_N
    if train_N is None or test_N is None or not torch.isin(test_N, train_N).all():
        return None
    return train_N


def _is_last(groups_N: Tensor, share: float) -> Tensor:
    """[N] bool: whether an example belongs to the last share of its group, rounded down."""
    _, group_N, sizes_G = np.unique(groups_N.numpy(), return_inverse=True, return_counts=True)
    sorted_N = group_N.argsort(kind="stable")
    rank_N = np.empty_like(group_N)  # of an example in its group
    rank_N[sorted_N] = np.arange(len(group_N)) - (sizes_G.cumsum() - sizes_G)[group_N[sorted_N]]
    last_G = np.floor((share * sizes_G).round(_DIGITS)).astype(np.int64)
    return torch.from_numpy(rank_N >= (sizes_G - last_G)[group_N])


def _is_first(labels_N: Tensor, classes: int, share: float) -> Tensor:
    """[N] bool: whether an example belongs to the first share of its class."""
    is_first_N = torch.zeros(len(labels_N), dtype=torch.bool)
    for label in range(classes):
        own = (labels_N == label).nonzero().flatten()
        is_first_N[own[: ceil(round(share * len(own), _DIGITS))]] = True
    return is_first_N


def normalised(dataset: Dataset, how: str, published: Constants | None = None) -> Dataset:
    """The data set with a normalisation: standard, unit or raw. Floats are never normalised.

    standard: bytes over `levels`, minus mean and over standard deviation of their channel: the published ones, else
    those of the training split. unit: bytes over `levels`. raw: bytes. Raises UserError for floats and `unit`.
    """
    if dataset.train.stored_NX.dtype == torch.float32:
        if how == "unit":
            raise UserError(
                f"data set {dataset.name!r} holds floats, which are kept as they are, but normalise is 'unit', "
                "which is for bytes; leave it at 'standard'"
            )
        return dataset
    if how == "raw":
        return dataset
    mean_C, std_C = ((), ()) if how == "unit" else published or measured(dataset.train.stored_NX, dataset.levels)
    return replace(dataset, normalisation=Normalisation(divisor=dataset.levels, mean_C=mean_C, std_C=std_C))


def measured(stored_NX: Tensor, levels: int) -> Constants:
    """Mean and standard deviation of each channel of uint8 examples [N, C, ...], over `levels`, in float64.

    Computed from counts of bytes, without a float copy. A constant channel gets deviation 1, so it is only centred.
    """
    channels = stored_NX.shape[1]
    counts_C256 = torch.zeros((channels, 256), dtype=torch.int64)
    for stored_nX in torch.split(stored_NX, _COUNTED_TOGETHER):
        for channel in range(channels):
            counts_C256[channel] += torch.bincount(stored_nX[:, channel].flatten(), minlength=256)
    values_256 = (torch.arange(256, dtype=torch.float32) / levels).double()
    shares_C256 = counts_C256.double() / counts_C256.sum(dim=1, keepdim=True)
    mean_C = shares_C256 @ values_256
    std_C = (shares_C256 * (values_256 - mean_C[:, None]).square()).sum(dim=1).sqrt()
    std_C[std_C == 0] = 1
    return tuple(mean_C.tolist()), tuple(std_C.tolist())


def labelled(data: Data) -> Dataset:
    """The data as labelled tensors. Raises UserError for other data."""
    if isinstance(data, Dataset):
        return data
    raise UserError(
        f"data set {data.name!r} has no classes, which this needs; expected an unstale.training.datasets.Dataset"
    )


def described(tensor: Tensor | NDArray[np.generic]) -> str:
    """Type and shape, for messages: `uint8 [3, 28, 28]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
