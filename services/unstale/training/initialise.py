"""The one place where a model gets its first parameters: PyTorch's default, drawn from the run's seed."""

from collections.abc import Callable

import torch
from torch import nn


def initialised(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The module that `build` makes on the CPU, the same bit for bit for the same seed, >= 0.

    Seeds the CPU's generator alone, which gives the numbers of `torch.manual_seed`, and puts it back as it
    was; the generators of the other devices are never touched. Source: algorithms.md 1.5.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build()
