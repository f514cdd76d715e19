"""A part of a data set: fewer examples, or some training examples as the test split.

Legend: N examples of a split.
"""

from dataclasses import replace
from math import ceil

import torch
from torch import Tensor

from unstale.errors import UserError
from unstale.training.datasets.dataset import Dataset

_DIGITS = 9  # a share of a number of examples is rounded to so many before it is rounded up


def part(data: Dataset, *, share: float) -> Dataset:
    """The first `share` of each class of both splits, in order.

    share: in (0, 1]; the number of examples is rounded up, so that every class remains.
    """
    if share == 1:
        return data
    train, test = (split.at(_first(split.labels_N, data.classes, share)) for split in (data.train, data.test))
    return replace(data, train=train, test=test)


def with_validation(data: Dataset, share: float) -> Dataset:
    """The last `share` of each training class as the test split, and the rest as the training split.

    share: in (0, 1); the number of examples is rounded up. Raises UserError if no training example remains.
    """
    backwards_N = torch.arange(len(data.train) - 1, -1, -1)
    last_N = backwards_N[_first(data.train.labels_N[backwards_N], data.classes, share)].sort().values
    is_left_N = torch.ones(len(backwards_N), dtype=torch.bool)
    is_left_N[last_N] = False
    if not is_left_N.any():
        raise UserError(f"data.validation is {share:g}, which leaves no example to train on; make it smaller")
    return replace(data, train=data.train.at(is_left_N), test=data.train.at(last_N))


def _first(labels_N: Tensor, classes: int, share: float) -> Tensor:
    """Indices of the first share of each class, ascending."""
    of_classes = [(labels_N == label).nonzero().flatten() for label in range(classes)]
    return torch.cat([own[: ceil(round(share * len(own), _DIGITS))] for own in of_classes]).sort().values
