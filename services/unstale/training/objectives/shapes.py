"""Checks that outputs of a model fit the targets of an objective."""

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


def misfit(outputs: Tensor, targets: Tensor, expected: str) -> UserError:
    """The error for outputs that do not fit their targets."""
    return UserError(
        f"the model gives outputs of shape {list(outputs.shape)} for targets of shape {list(targets.shape)}, "
        f"expected {expected}"
    )
