"""A part of a data set: fewer examples, or some of the training examples in place of the test set.

Legend: N training examples, M test examples.
"""

from dataclasses import replace
from math import ceil

import torch
from torch import Tensor

from unstale.errors import UserError
from unstale.training.datasets.dataset import Dataset

_DIGITS = 9  # a share of a number of examples is rounded to so many before it is rounded up


def part(data: Dataset, *, share: float) -> Dataset:
    """The first `share` of each class, of training and test set, in their order.

    share: in (0, 1]; what it comes to is rounded up, so that no class is lost.
    """
    if share == 1:
        return data
    train_N, test_M = (
        _first(labels, data.classes, share) for labels in (data.labels_train_N, data.labels_test_M)
    )
    return _made_of(data, train_N, data, test_M)


def with_validation(data: Dataset, share: float) -> Dataset:
    """The last `share` of each class of the training set in place of the test set, and the rest to train on.

    share: in (0, 1); what it comes to is rounded up. Raises UserError where nothing is left to train on.
    """
    backwards_N = torch.arange(len(data.labels_train_N) - 1, -1, -1)
    last_N = backwards_N[_first(data.labels_train_N[backwards_N], data.classes, share)].sort().values
    is_left_N = torch.ones(len(backwards_N), dtype=torch.bool)
    is_left_N[last_N] = False
    if not is_left_N.any():
        raise UserError(f"data.validation is {share:g}, which leaves no example to train on; make it smaller")
    held_out = replace(
        data,
        stored_test_MX=data.stored_train_NX,
        labels_test_M=data.labels_train_N,
        groups_test_M=data.groups_train_N,
    )
    return _made_of(data, is_left_N.nonzero().flatten(), held_out, last_N)


def _first(labels_N: Tensor, classes: int, share: float) -> Tensor:
    """Positions of the first share of each class, in order."""
    taken = []
    for label in range(classes):
        of_class = (labels_N == label).nonzero().flatten()
        taken.append(of_class[: ceil(round(share * len(of_class), _DIGITS))])
    return torch.cat(taken).sort().values


def _made_of(data: Dataset, train_N: Tensor, tested: Dataset, test_M: Tensor) -> Dataset:
    """Training examples of one, test examples of the other."""
    return replace(
        data,
        stored_train_NX=data.stored_train_NX[train_N],
        labels_train_N=data.labels_train_N[train_N],
        groups_train_N=None if data.groups_train_N is None else data.groups_train_N[train_N],
        stored_test_MX=tested.stored_test_MX[test_M],
        labels_test_M=tested.labels_test_M[test_M],
        groups_test_M=None if tested.groups_test_M is None else tested.groups_test_M[test_M],
    )
