"""A model as one flat vector, the form in which it is sent, stored, aggregated and hashed.

Legend: d parameters, b values of float buffers.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

_WIRE_DTYPE = np.dtype("<f4")


class FlatModel:
    """A module whose parameters, gradients and float buffers are views into `parameters_d`, `gradient_d`, `buffers_b`.

    Loading a model is one copy, reading a gradient needs no copy, and an optimiser step is one operation on d numbers.
    The vectors are float32, in the order of `module.named_parameters()` and `module.named_buffers()`, without integer
    buffers, such as BatchNorm's count of batches. Do not move or cast the module, or add parameters or buffers.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.module = module.to(device)
        self._parameters = list(self.module.parameters())
        self.dimension = sum(p.numel() for p in self._parameters)
        self.parameters_d = _flatten(self._parameters, device)
        self._gradient_d: Tensor | None = None
        self.buffers_b = _flatten([buffer for _, buffer in float_buffers(self.module)], device)

    @property
    def gradient_d(self) -> Tensor:
        """`grad` of all parameters, [d] float32; allocated at the first access."""
        if self._gradient_d is None:
            self._gradient_d = torch.zeros_like(self.parameters_d)
            for parameter, view in zip(self._parameters, _views(self._gradient_d, self._parameters), strict=True):
                if parameter.grad is not None:
                    view.copy_(parameter.grad)
                parameter.grad = view
        return self._gradient_d

    def load(self, model_d: Tensor, buffers_b: Tensor | None = None) -> None:
        """Copy a model into the module.

        model_d: [d] float32, any device, read-only. buffers_b: [b] float32 likewise; None for no change.
        """
        self.parameters_d.copy_(model_d)
        if buffers_b is not None:
            self.buffers_b.copy_(buffers_b)

    @contextmanager
    def using(self, model_d: Tensor, buffers_b: Tensor | None = None) -> Iterator[None]:
        """Compute with another model inside the block. Its parameters are not copied, and therefore read-only.

        model_d, buffers_b: as for `load`. Buffers are copied, because a module may write to them, and not restored.
        """
        original = [parameter.data for parameter in self._parameters]
        temporary = _views(model_d.to(self.buffers_b.device), self._parameters)
        if buffers_b is not None:
            self.buffers_b.copy_(buffers_b)
        try:
            for parameter, view in zip(self._parameters, temporary, strict=True):
                parameter.data = view
            yield
        finally:
            for parameter, tensor in zip(self._parameters, original, strict=True):
                parameter.data = tensor

    def release(self) -> None:
        """Release the memory of parameters and gradient. Only `using` works afterwards."""
        self.parameters_d = self._gradient_d = torch.empty(0, device=self.buffers_b.device)
        zero = torch.zeros((), device=self.buffers_b.device)
        for parameter in self._parameters:
            parameter.grad = None
            parameter.data = zero.expand(parameter.shape)  # keeps the shape without memory


def _flatten(tensors: Sequence[Tensor], device: torch.device | str) -> Tensor:
    """Copy tensors into a new vector, and make them views into it."""
    vector = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=torch.float32, device=device)
    for tensor, view in zip(tensors, _views(vector, tensors), strict=True):
        assert tensor.dtype == torch.float32, f"expected float32, got {tensor.dtype}"
        view.copy_(tensor.data)
        tensor.data = view
    return vector


def _views(vector: Tensor, like: Iterable[Tensor]) -> Iterator[Tensor]:
    """Views into consecutive parts of a vector, with the shapes of `like`."""
    offset = 0
    for tensor in like:
        end = offset + tensor.numel()
        yield vector[offset:end].view(tensor.shape)
        offset = end


def float_buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The float buffers with their names, in the order of `buffers_b`."""
    return [(name, buffer) for name, buffer in module.named_buffers() if buffer.is_floating_point()]


def to_bytes(model_d: Tensor) -> memoryview:
    """The little-endian bytes of a vector, as a view if the vector is on the host. model_d: [d] float32, contiguous."""
    # One call, because `detach().cpu().numpy()` would release the interpreter lock twice.
    host_d: np.ndarray = model_d.numpy(force=True)
    return host_d.astype(_WIRE_DTYPE, copy=False).data.cast("B")


def from_bytes(frames: Iterable[memoryview | bytes], dimension: int, device: torch.device | str = "cpu") -> Tensor:
    """A new vector [d] float32 from the frames of a payload, in order, whose sizes must add up to 4 d bytes."""
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


def digest(*vectors: Tensor) -> str:
    """SHA-256 of the vectors' bytes in order, in hex."""
    return digest_of_frames(map(to_bytes, vectors))


def digest_of_frames(frames: Iterable[memoryview]) -> str:
    """`digest` of the vectors whose bytes, in order, these frames contain."""
    sha256 = hashlib.sha256()
    for frame in frames:
        sha256.update(frame)
    return sha256.hexdigest()


def is_finite(vector_d: Tensor) -> bool:
    """Whether the vector has no NaN and no infinity. vector_d: [d] float32, any device."""
    # `sum` reads once, `isfinite` makes copies. Finite numbers may overflow the sum; then `isfinite` decides.
    return math.isfinite(float(vector_d.sum())) or bool(torch.isfinite(vector_d).all())
