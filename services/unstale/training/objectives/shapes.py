"""Checks that outputs of a model fit the targets of an objective, and counts classes."""

import torch
from torch import Tensor

from unstale.errors import UserError


def fitted(outputs: Tensor, targets: Tensor) -> Tensor:
    """The outputs in the shape of the targets, such as [b, 1] as [b].

    Raises UserError for outputs with another number of values: broadcasting would compare each with all others.
    """
    if outputs.shape == targets.shape:
        return outputs
    if outputs.numel() != targets.numel() or len(outputs) != len(targets):
        raise misfit(outputs, targets, "one output for each target")
    return outputs.reshape(targets.shape)


def class_counts(classes: Tensor, number: int, counts: Tensor | None = None) -> Tensor:
    """How often each class from 0 to number - 1 occurs, [number] int64. No wait for a device.

    classes: int64. counts: bool, of the same shape, where it counts; None for everywhere.
    """
    if classes.device.type == "cpu":
        return torch.bincount((classes if counts is None else classes[counts]).flatten(), minlength=number)
    # `bincount` and a mask as an index read values on the host; deterministic `scatter_add_` does, too.
    counted = classes if counts is None else classes.masked_fill(~counts, number)
    sorted_n = counted.flatten().sort().values
    return torch.searchsorted(sorted_n, torch.arange(number + 1, device=classes.device)).diff()


def misfit(outputs: Tensor, targets: Tensor, expected: str) -> UserError:
    """The error for outputs that do not fit their targets."""
    return UserError(
        f"the model gives outputs of shape {list(outputs.shape)} for targets of shape {list(targets.shape)}, "
        f"expected {expected}"
    )
