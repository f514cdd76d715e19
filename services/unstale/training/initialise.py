"""The one place that seeds PyTorch's own generators: for a model's first parameters, and for a task's dropout."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


def initialised(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The module that `build` makes on the CPU, the same bit for bit for the same seed, >= 0.

    The numbers are those of `torch.manual_seed`. Source: algorithms.md 1.5.
    """
    with seeded(seed):
        return build()


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """What PyTorch draws inside, such as dropout, depends on the seed alone; afterwards it goes on as if nothing
    had been drawn.

    seed: in [0, 2^64). device: where the model is; the CPU's generator is always seeded, a CUDA device's where it
    is one, no other. Takes a few microseconds and waits for no kernel. The generators are the whole process's: do
    not compute in another thread meanwhile. Source: algorithms.md 1.5.
    """
    generators = [torch.default_generator]
    where = torch.device(device)
    if where.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        index = torch.cuda.current_device() if where.index is None else where.index
        generators.append(torch.cuda.default_generators[index])
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
