"""A data set that another one gradually replaces while clients train, such as MNIST and SVHN.

Source: Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#changing-data

Legend: N examples, C channels, H, W pixels, X the shape of one example.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from unstale.errors import UserError
from unstale.training.datasets.dataset import BRIGHTEST, Dataset, Later, Normalisation, Split, normalised

STANDARD = (0.5,), (0.25,)
"""Mean and deviation of `standard`: for bytes from 0 to 1, the same for both data sets and all channels."""

_CONVERTED_TOGETHER = 1024  # images; limits the memory for converting


def varied(first: Dataset, second: Dataset, *, rate: float, normalise: str) -> Dataset:
    """`first`, with training examples that those of `second` replace, and the test examples of both.

    Images of bytes are scaled to the size (bilinear) and channels of the second data set, and both are normalised
    alike (`standard` is a mean of 0.5 and a deviation of 0.25). Floats are not changed and must have one shape. Groups
    are those of the first training split; the test split has none.

    rate: as in `Later`. Raises UserError for data sets that do not fit together.
    """
    _check(first, second)
    first, second = _like(first, second), _like(second, second)
    tests = (first.test, second.test)
    together = Dataset(
        name=f"{first.name} to {second.name}",
        classes=first.classes,
        train=first.train,
        test=Split(
            stored_NX=torch.cat([split.stored_NX for split in tests]),
            labels_N=torch.cat([split.labels_N for split in tests]),
        ),
        levels=second.levels,
        origin=f"{first.origin} and {second.origin}",
        later=Later(stored_LX=second.train.stored_NX, labels_L=second.train.labels_N, rate=rate),
    )
    are_floats = second.train.stored_NX.dtype == torch.float32
    return together if are_floats else normalised(together, normalise, STANDARD)


def _check(first: Dataset, second: Dataset) -> None:
    if second.classes != first.classes:
        raise UserError(
            f"data set {second.name!r} of data.variant has {second.classes} classes, but {first.name!r}, whose place "
            f"it takes, {first.classes}; expected as many"
        )
    kinds = ["bytes" if part.train.stored_NX.dtype == torch.uint8 else "floats" for part in (first, second)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"data set {second.name!r} of data.variant holds {kinds[1]}, but {first.name!r}, whose place it takes, "
            f"{kinds[0]}; expected the same in both"
        )
    mine, its = first.input_shape, second.input_shape
    are_images = kinds[0] == "bytes" and len(mine) == len(its) == 3
    if mine != its and not (are_images and mine[0] in (1, its[0])):
        raise UserError(
            f"data set {first.name!r} has examples of {_spelled(mine)}, which cannot be made like those of "
            f"{second.name!r} of data.variant, {_spelled(its)}; expected the same shape, or images of bytes with as "
            "many channels or one"
        )


def _like(dataset: Dataset, other: Dataset) -> Dataset:
    """The data set with examples in the format of the other one."""
    if dataset.train.stored_NX.dtype == torch.float32:
        convert: Callable[[Tensor], Tensor] = dataset.normalisation  # a factory may have set one
    else:
        convert = partial(_converted, shape=other.input_shape, scale=other.levels / dataset.levels)
    return replace(
        dataset,
        train=replace(dataset.train, stored_NX=convert(dataset.train.stored_NX)),
        test=replace(dataset.test, stored_NX=convert(dataset.test.stored_NX)),
        levels=other.levels,
        normalisation=Normalisation(),
    )


def _converted(stored_NX: Tensor, shape: tuple[int, ...], scale: float) -> Tensor:
    """Bytes of this shape, times `scale`; the argument itself if nothing changes."""
    if tuple(stored_NX.shape[1:]) == shape and scale == 1:
        return stored_NX
    converted_NX = torch.empty((len(stored_NX), *shape), dtype=torch.uint8)
    pieces = zip(
        torch.split(stored_NX, _CONVERTED_TOGETHER), torch.split(converted_NX, _CONVERTED_TOGETHER), strict=True
    )
    for stored_nX, converted_nX in pieces:
        levels_nX = stored_nX.float() * scale
        if stored_nX.shape[2:] != converted_nX.shape[2:]:
            levels_nX = interpolate(levels_nX, size=shape[1:], mode="bilinear", antialias=True)
        converted_nX.copy_(levels_nX.round_().clamp_(0, BRIGHTEST))  # copies a grey channel to all
    return converted_NX


def _spelled(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
