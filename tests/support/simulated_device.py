"""A simulated CUDA device: tensors report cuda:0 and compute on the CPU. It refuses mixed devices and counts copies."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
CUDA = torch.device("cuda:0")


class DeviceTensor(Tensor):
    """For C++ on the CPU, because builds without CUDA know no other device; for Python on cuda:0. host: its values."""

    host: Tensor
    device = property(lambda self: CUDA)  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: Tensor) -> "DeviceTensor":
        tensor = Tensor._make_wrapper_subclass(
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype, device="cpu"
        )
        tensor.host = host
        return tensor

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        raise AssertionError(f"{func} outside of `simulated_device`")

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        copy = kwargs.pop("copy", False)
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        device, dtype = device or CUDA, dtype or self.dtype
        if device.type == "cuda" and dtype == self.dtype and not copy:
            return self
        return aten._to_copy.default(self, dtype=dtype, device=device)

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"values of shape {tuple(self.shape)} are read on the host")

    tolist = numpy = __array__ = _refuse


_SHAPES_OF_VALUES = (aten.nonzero.default, aten.masked_select.default, aten.bincount.default)


class Copies(TorchDispatchMode):
    """Counts copies between device and host.

    Attributes:
        to_host: Numbers of each copy to the host; the host waits for it.
        waits: How often the host waits: for copies to the host, for blocking ones to the device, and for operations
            whose result has a shape that depends on values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.to_host: list[int] = []
        self.waits = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
        target = kwargs.get("device")
        if func in (aten._to_copy.default, aten.copy_.default):
            into_device = isinstance(args[0], DeviceTensor) if target is None else torch.device(target).type == "cuda"
            non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
            self._note(tensors[-1], into_device, non_blocking)
        elif on_device:
            if func is aten._local_scalar_dense.default:
                self._note(tensors[0], False, False)
            self.waits += func in _SHAPES_OF_VALUES or (func is aten.index.Tensor and _has_mask(args[1]))
            for tensor in tensors:
                assert isinstance(tensor, DeviceTensor) or tensor.ndim == 0, f"{func} with tensors of two devices"
            into_device = target is None or torch.device(target).type == "cuda"
        else:
            into_device = target is not None and torch.device(target).type == "cuda"
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        result = func(*tree_map(_on_host, args), **tree_map(_on_host, kwargs))
        if func is aten.copy_.default:
            return args[0]
        known = {id(tensor.host): tensor for tensor in on_device}
        return tree_map(lambda one: _on_device(one, known) if into_device else one, result)

    def _note(self, source: Tensor, into_device: bool, non_blocking: bool) -> None:
        if isinstance(source, DeviceTensor) and not into_device:
            self.to_host.append(source.numel())
            self.waits += 1
        elif into_device and not isinstance(source, DeviceTensor):
            self.waits += not non_blocking


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype == torch.bool for index in indices)


def _on_host(value: Any) -> Any:
    return value.host if isinstance(value, DeviceTensor) else value


def _on_device(value: Any, known: Mapping[int, DeviceTensor]) -> Any:
    """The argument that an operation wrote to, or a new tensor."""
    if not isinstance(value, Tensor) or isinstance(value, DeviceTensor):
        return value
    return known[id(value)] if id(value) in known else DeviceTensor(value)


@contextmanager
def simulated_device() -> Iterator[Copies]:
    """Torch makes tensors of cuda:0 and computes with them in the block."""
    torch._C._ensureCUDADeviceGuardSet()
    with patch("torch.cuda._lazy_init"), Copies() as copies:
        yield copies
