"""Seeds PyTorch's own generators: for a model's first parameters, and for a task's dropout."""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import nn

_DRAWS_NOTHING = {
    *(nn.Sequential, nn.Identity, nn.Flatten, nn.Linear, nn.Conv2d, nn.GroupNorm, nn.BatchNorm2d, nn.ReLU),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
}

_GENERATORS = threading.RLock()
"""Held by the thread whose block uses the generators of the process."""


def draws(module: nn.Module, besides: Collection[type[nn.Module]] = ()) -> bool:
    """Whether the forward pass may draw random numbers: false if every layer is unmodified and of a known type.

    Our classes declare `draws_nothing = True`. besides: types of layers whose draws do not count.
    """
    drawless = _DRAWS_NOTHING.union(besides)

    def may_draw(layer: nn.Module) -> bool:
        own = vars(layer)
        changed = "forward" in own or own["_forward_hooks"] or own["_forward_pre_hooks"]
        return changed or not (type(layer) in drawless or getattr(type(layer), "draws_nothing", False))

    return any(map(may_draw, module.modules()))


@contextmanager
def seeded(seed: int | None, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seeds PyTorch's draws inside the block, such as dropout, and restores the generators after it.

    seed: in [0, 2^64), as for `torch.manual_seed`; None to do nothing. device: of the model; the CPU's generator is
    always seeded, a CUDA device's too if this is one. Takes a few microseconds and waits for no kernel. The generators
    belong to the whole process: the blocks of other threads wait, but draws outside of a block do not.
    Source: docs/methods/README.md#random-numbers
    """
    if seed is None:
        yield
        return
    generators = [torch.default_generator]
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    with _GENERATORS:
        states = [generator.get_state() for generator in generators]
        try:
            for generator in generators:
                generator.manual_seed(seed)
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
