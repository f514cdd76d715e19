"""A model as one flat vector: the only form in which parameters are sent, stored, aggregated and digested.

Legend: d number of parameters.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn


class FlatModel:
    """A module whose parameters and gradients are views into two vectors, `parameters_d` and `gradient_d`.

    Loading a version is one copy, a gradient is read without gathering, and an optimiser step is one
    operation on d numbers. The order is `module.named_parameters()`, float32. Buffers are not part of the
    vector (algorithms.md 1.5). The module must not be moved, cast or given new parameters afterwards.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.module = module.to(device)
        parameters = list(self.module.parameters())
        self.dimension = sum(p.numel() for p in parameters)
        self.parameters_d = torch.empty(self.dimension, dtype=torch.float32, device=device)
        self.gradient_d = torch.zeros_like(self.parameters_d)
        offset = 0
        for parameter in parameters:
            assert parameter.dtype == torch.float32, f"parameters must be float32, got {parameter.dtype}"
            end = offset + parameter.numel()
            view = self.parameters_d[offset:end].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.gradient_d[offset:end].view(parameter.shape)
            offset = end

    def load(self, model_d: Tensor) -> None:
        """Copy a version into the module. model_d: [d] float32, any device, not written to."""
        self.parameters_d.copy_(model_d)


def describe(module: nn.Module) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """(name, shape, dtype) of every parameter in vector order: what the wire contract signs."""
    return tuple(
        (name, tuple(parameter.shape), str(parameter.dtype).removeprefix("torch."))
        for name, parameter in module.named_parameters()
    )


def to_bytes(model_d: Tensor) -> memoryview:
    """The vector's little-endian float32 bytes, without a copy where it already lies in host memory.

    model_d: [d] float32, contiguous. The view shares memory with it: do not write to the vector while it is
    in use.
    """
    host_d: np.ndarray = model_d.detach().cpu().numpy()
    return host_d.astype("<f4", copy=False).data.cast("B")


def from_bytes(
    frames: Iterable[memoryview | bytes], dimension: int, device: torch.device | str = "cpu"
) -> Tensor:
    """A new [d] float32 vector from payload frames in order. Their sizes must add up to 4 d bytes."""
    model_d = torch.empty(dimension, dtype=torch.float32)
    target = model_d.numpy().data.cast("B")
    offset = 0
    for frame in frames:
        end = offset + len(frame)
        assert end <= len(target), f"payload is longer than {len(target)} bytes"
        target[offset:end] = frame
        offset = end
    assert offset == len(target), f"payload is {offset} bytes, expected {len(target)}"
    return model_d.to(device)


def digest(model_d: Tensor) -> str:
    """SHA-256 of the vector's bytes, in hex: two models are the same exactly when their digests are."""
    return hashlib.sha256(to_bytes(model_d)).hexdigest()
