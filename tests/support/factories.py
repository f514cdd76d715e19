"""Models that tests name as `support.factories:...`, with features that the built-in small models lack."""

import math

import torch
from torch import nn


def with_buffers(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A BatchNorm, whose running averages are float buffers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes)
    )


def with_dropout(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A dropout, which draws random numbers while it trains."""
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(math.prod(input_shape), classes))


class _Wide(nn.Module):
    """Learns with its last layer only; the others only add size."""

    def __init__(self, inputs: int, classes: int, ballast: int) -> None:
        super().__init__()
        self.ballast = nn.Parameter(torch.zeros(ballast))
        self.last = nn.Linear(inputs, classes)

    def forward(self, inputs_BCHW: torch.Tensor) -> torch.Tensor:
        return self.last(inputs_BCHW.flatten(1)) + 0 * self.ballast[0]


def wide(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A little over 8 MiB of parameters: too much for one message."""
    return _Wide(math.prod(input_shape), classes, 2 * 1024 * 1024)
