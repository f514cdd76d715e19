"""A model as one flat vector, the form in which it is sent, stored, aggregated and hashed.

Legend: d parameters, b values of float buffers.
"""

import hashlib
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from unstale_client import vectors

T = TypeVar("T", bound=Tensor)

EXCHANGED = (torch.float32, torch.float16, torch.bfloat16)
"""Types of tensors that a vector can hold; it is float32 itself."""

_WIRE_DTYPE = np.dtype("<f4")


class FlatModel:
    """A module whose exchanged tensors are views into `parameters_d` and `buffers_b`, and gradients into `gradient_d`.

    Loading a model is one copy, reading a gradient needs no copy, and an optimiser step is one operation on d numbers.
    The vectors are float32. Tensors in float16 and bfloat16 are no views: `load` and `gather` copy and convert them.
    No vector contains frozen parameters or integer buffers, such as BatchNorm's count of batches.
    """

    def __init__(
        self, module: nn.Module, device: torch.device | str = "cpu", exchanged: Sequence[str] | None = None
    ) -> None:
        """exchanged: names of parameters and float buffers, in the order of the vectors; None for all parameters with
        `requires_grad` and all float buffers, in the order of the module.
        """
        is_moved = torch.device(device).type != "cpu"
        self._frozen_digest = frozen_digest(module) if is_moved else None  # before the move, which may convert values
        self.module = module.to(device)
        buffers = float_buffers(self.module)
        if exchanged is None:
            self.parameters = [item for item in self.module.named_parameters() if item[1].requires_grad]
            self.buffers = buffers
        else:
            self.parameters = _named(exchanged, self.module.named_parameters())
            self.buffers = _named(exchanged, buffers)
        self._parameters = [parameter for _, parameter in self.parameters]
        self.dimension = sum(p.numel() for p in self._parameters)
        self.parameters_d = _flatten(self._parameters, device)
        self._gradient_d: Tensor | None = None
        self.buffers_b = _flatten([buffer for _, buffer in self.buffers], device)
        self._dtypes = {name: tensor.dtype for name, tensor in (*self.parameters, *self.buffers)}
        self._names = set(_tensors_by_name(self.module))
        self._parts = [*self._with_views()]  # computed once: a short task would notice it
        self._owners = [self.module.get_submodule(name.rpartition(".")[0]) for name, _, _ in self._parts]
        self.converts = not {*self._dtypes.values()} <= {torch.float32}

    @property
    def frozen_digest(self) -> str | None:
        """`frozen_digest` of the module, as it is before its first task."""
        return self._frozen_digest or frozen_digest(self.module)

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
        if self.converts:
            self._convert(self.parameters, self.parameters_d)
            self._convert(self.buffers, self.buffers_b)

    @torch.no_grad()
    def gather(self) -> None:
        """Copy the exchanged tensors that the module has now into the vectors, where they are no views.

        Raises ValueError for a tensor that is missing or has another shape or type, and for one that is new.
        """
        now = _tensors_by_name(self.module)
        if not now.keys() <= self._names:
            first = min(now.keys() - self._names)
            raise ValueError(f"the model has {first!r}, which it did not have before, expected the same tensors")
        for name, tensor, view in self._parts:
            trained = now.get(name)
            if trained is None or trained.shape != tensor.shape:
                shape = "no tensor" if trained is None else f"shape {list(trained.shape)}"
                raise ValueError(f"the model has {shape} for {name!r}, expected shape {list(tensor.shape)}")
            if trained.dtype != self._dtypes[name]:
                raise ValueError(f"the model has {trained.dtype} for {name!r}, expected {self._dtypes[name]}")
            if not _is_at(trained, view):
                view.copy_(trained)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the exchanged tensors back where code has replaced them or their memory, without gradients.

        Does nothing after `release`.
        """
        for owner, (name, tensor, view) in zip(self._owners, self._parts, strict=True):
            last = name.rpartition(".")[2]
            if getattr(owner, last, None) is not tensor:
                setattr(owner, last, tensor)
            dtype = self._dtypes[name]
            if dtype == view.dtype and not _is_at(tensor, view):
                tensor.data = view
            elif dtype != view.dtype and (tensor.dtype, tensor.device) != (dtype, view.device):
                tensor.data = view.to(dtype)
        for parameter in self._parameters:
            if not parameter.requires_grad:
                parameter.requires_grad_(True)
            parameter.grad = None

    @contextmanager
    def using(self, model_d: Tensor, buffers_b: Tensor | None = None) -> Iterator[None]:
        """Compute with another model inside the block. Its parameters are not copied, and therefore read-only.

        model_d, buffers_b: as for `load`. Buffers are copied, because a module may write to them, and not restored.
        """
        original = [parameter.data for parameter in self._parameters]
        temporary = _views(model_d.to(self.buffers_b.device), self._parameters)
        if buffers_b is not None:
            self.buffers_b.copy_(buffers_b)
            if self.converts:
                self._convert(self.buffers, self.buffers_b)
        try:
            for parameter, view in zip(self._parameters, temporary, strict=True):
                parameter.data = view.to(parameter.dtype)  # the view itself where it is float32
            yield
        finally:
            for parameter, tensor in zip(self._parameters, original, strict=True):
                parameter.data = tensor

    def release(self) -> None:
        """Release the memory of parameters and gradient. Only `using` works afterwards."""
        self._parts, self._owners = [], []
        self.parameters_d = self._gradient_d = torch.empty(0, device=self.buffers_b.device)
        for parameter in self._parameters:
            zero = torch.zeros((), dtype=parameter.dtype, device=self.buffers_b.device)
            parameter.grad = None
            parameter.data = zero.expand(parameter.shape)  # keeps the shape without memory

    @torch.no_grad()
    def _convert(self, named: Sequence[tuple[str, Tensor]], vector: Tensor) -> None:
        """Copy a vector into the tensors that are no views."""
        tensors = [tensor for _, tensor in named]
        for tensor, view in zip(tensors, _views(vector, tensors), strict=True):
            if tensor.dtype != torch.float32:
                tensor.copy_(view)

    def _with_views(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name and tensor of each exchanged tensor, and its part of the vectors."""
        for named, vector in ((self.parameters, self.parameters_d), (self.buffers, self.buffers_b)):
            tensors = [tensor for _, tensor in named]
            for (name, tensor), view in zip(named, _views(vector, tensors), strict=True):
                yield name, tensor, view


def _tensors_by_name(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers. Several times as fast as `named_parameters` and `named_buffers`."""
    return {
        f"{path}.{name}" if path else name: tensor
        for path, part in module.named_modules()
        for table in (part._parameters, part._buffers)  # noqa: SLF001  (nothing public is as fast)
        for name, tensor in table.items()
        if tensor is not None
    }


def _named(names: Iterable[str], tensors: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """The tensors of these names, in this order; names of others are left out."""
    by_name = dict(tensors)
    return [(name, by_name[name]) for name in names if name in by_name]


def _flatten(tensors: Sequence[Tensor], device: torch.device | str) -> Tensor:
    """Copy tensors into a new vector, and make those in float32 views into it."""
    vector = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=torch.float32, device=device)
    for tensor, view in zip(tensors, _views(vector, tensors), strict=True):
        assert tensor.dtype in EXCHANGED, f"expected float32, float16 or bfloat16, got {tensor.dtype}"
        view.copy_(tensor.data)
        if tensor.dtype == torch.float32:
            tensor.data = view
    return vector


def _is_at(tensor: Tensor, view: Tensor) -> bool:
    """Whether a tensor is this view."""
    return tensor.dtype == view.dtype and tensor.device == view.device and tensor.data_ptr() == view.data_ptr()


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


def frozen_digest(module: nn.Module) -> str | None:
    """SHA-256, in hex, of all parameters without `requires_grad`; None without any. See section 8 of PROTOCOL.md."""
    frozen = sorted((name, parameter) for name, parameter in module.named_parameters() if not parameter.requires_grad)
    if not frozen:
        return None
    sha256 = hashlib.sha256()
    for name, parameter in frozen:
        shape, dtype = parameter.shape, str(parameter.dtype).removeprefix("torch.").encode()
        sha256.update(struct.pack("<I", len(name.encode())) + name.encode())
        sha256.update(struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        sha256.update(struct.pack("<I", len(dtype)) + dtype)
        sha256.update(_values(parameter.detach()))
    return sha256.hexdigest()


def _values(tensor: Tensor) -> memoryview | bytes:
    """The bytes of a tensor; none of a type that PyTorch cannot view as bytes, such as a sparse one."""
    try:
        return tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data
    except (NotImplementedError, RuntimeError, TypeError):
        return b""


def to_bytes(model_d: Tensor) -> memoryview:
    """The little-endian bytes of a vector, as a view if the vector is on the host. model_d: [d] float32, contiguous."""
    # One call, because `detach().cpu().numpy()` would release the interpreter lock twice.
    host_d: np.ndarray = model_d.numpy(force=True)
    return host_d.astype(_WIRE_DTYPE, copy=False).data.cast("B")


def from_bytes(frames: Iterable[memoryview | bytes], dimension: int, device: torch.device | str = "cpu") -> Tensor:
    """A new vector [d] float32 from the frames of a payload, in order, whose sizes must add up to 4 d bytes."""
    model_d = torch.empty(dimension, dtype=torch.float32)
    vectors.fill(model_d.numpy().data.cast("B"), frames)
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


def is_finite(*vectors: Tensor) -> bool:
    """Whether vectors, at least one, have no NaN and no infinity; one wait for their device. Each [d] float32."""
    # `sum` reads once, `isfinite` makes copies. Finite numbers may overflow the sum; then `isfinite` decides.
    first, *others = [vector_d.sum() for vector_d in vectors if vector_d.numel()] or [torch.zeros(())]
    total = float(sum(others, start=first))
    return math.isfinite(total) or all(bool(torch.isfinite(vector_d).all()) for vector_d in vectors)


def on_host(*tensors: Tensor) -> list[Tensor]:
    """Tensors of one device in host memory: themselves if they are there, else copies, with one wait for the device."""
    if len(tensors) < 2 or tensors[0].device.type == "cpu":
        return [tensor.cpu() for tensor in tensors]
    first = tensors[0].dtype
    common = first if all(tensor.dtype == first for tensor in tensors) else torch.uint8
    flat = [tensor.contiguous().view(-1).view(common) for tensor in tensors]
    parts = torch.cat(flat).cpu().split_with_sizes([part.numel() for part in flat])
    # A part of other numbers may begin at an address that its type does not allow.
    whole = parts if common == first else [part.clone() for part in parts]
    return [part.view(like.dtype).view(like.shape) for part, like in zip(whole, tensors, strict=True)]
