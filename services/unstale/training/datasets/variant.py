"""A data set that gives way to another one while clients train, as MNIST does to SVHN.

Source: Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#changing-data

Legend: N, M training and test examples, C channels, H, W pixels, X the shape of one example.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from unstale.errors import UserError
from unstale.training.datasets.dataset import BRIGHTEST, Dataset, Later, Normalisation

MEAN, STD = 0.5, 0.25
"""What `standard` is here: of bytes from 0 to 1, the same for both data sets and for every channel."""

_IMAGES_AT_A_TIME = 1024  # bounds what converting needs beside the data


def varied(first: Dataset, second: Dataset, *, rate: float, normalise: str) -> Dataset:
    """`first`, whose training examples give way to those of `second`; the test set is that of both.

    Images of bytes take the size of the second's: bilinear, grey ones in as many channels as it has; both are
    normalised alike (`standard` is a mean of 0.5 and a deviation of 0.25). Floats are kept as they are and must have
    one shape. Groups are those of the first; of the test set it is not known whose its examples are.

    rate: as in `Later`. normalise: one of NORMALISE. Raises UserError for what does not fit together.
    """
    _check(first, second)
    first, second = _like(first, second), _like(second, second)
    return Dataset(
        name=f"{first.name} to {second.name}",
        classes=first.classes,
        stored_train_NX=first.stored_train_NX,
        labels_train_N=first.labels_train_N,
        stored_test_MX=torch.cat([first.stored_test_MX, second.stored_test_MX]),
        labels_test_M=torch.cat([first.labels_test_M, second.labels_test_M]),
        groups_train_N=first.groups_train_N,
        levels=second.levels,
        normalisation=_normalisation(second, normalise),
        origin=f"{first.origin} and {second.origin}",
        later=Later(stored_LX=second.stored_train_NX, labels_L=second.labels_train_N, rate=rate),
    )


def _check(first: Dataset, second: Dataset) -> None:
    if second.classes != first.classes:
        raise UserError(
            f"data set {second.name!r} of data.variant has {second.classes} classes, but {first.name!r}, whose place "
            f"it takes, {first.classes}; expected as many"
        )
    kinds = ["bytes" if part.stored_train_NX.dtype == torch.uint8 else "floats" for part in (first, second)]
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
    """The data set with examples stored like those of the other one, which it fits."""
    if dataset.stored_train_NX.dtype == torch.float32:
        made: Callable[[Tensor], Tensor] = dataset.normalisation  # a factory may have given it one
    else:
        made = partial(_converted, shape=other.input_shape, scale=other.levels / dataset.levels)
    return replace(
        dataset,
        stored_train_NX=made(dataset.stored_train_NX),
        stored_test_MX=made(dataset.stored_test_MX),
        levels=other.levels,
        normalisation=Normalisation(),
    )


def _converted(stored_NX: Tensor, shape: tuple[int, ...], scale: float) -> Tensor:
    """Bytes of this shape, times `scale`; the argument itself where that changes nothing."""
    if tuple(stored_NX.shape[1:]) == shape and scale == 1:
        return stored_NX
    made_NX = torch.empty((len(stored_NX), *shape), dtype=torch.uint8)
    pieces = zip(
        torch.split(stored_NX, _IMAGES_AT_A_TIME), torch.split(made_NX, _IMAGES_AT_A_TIME), strict=True
    )
    for stored_nX, made_nX in pieces:
        levels_nX = stored_nX.float() * scale
        if stored_nX.shape[2:] != made_nX.shape[2:]:
            levels_nX = interpolate(levels_nX, size=shape[1:], mode="bilinear", antialias=True)
        made_nX.copy_(levels_nX.round_().clamp_(0, BRIGHTEST))  # a grey one fills all channels
    return made_NX


def _normalisation(dataset: Dataset, normalise: str) -> Normalisation:
    if dataset.stored_train_NX.dtype == torch.float32 or normalise == "raw":
        return Normalisation()
    if normalise == "unit":
        return Normalisation(divisor=dataset.levels)
    return Normalisation(divisor=dataset.levels, mean_C=(MEAN,), std_C=(STD,))


def _spelled(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
