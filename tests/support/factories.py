"""Models that tests name as `support.factories:...`: small ones with what our own small models have not."""

import math

from torch import nn


def with_buffers(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A BatchNorm, whose running averages are float buffers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, classes),
    )


def with_dropout(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A dropout, which draws random numbers while it trains."""
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(math.prod(input_shape), classes))
