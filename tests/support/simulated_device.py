"""A simulated CUDA device: tensors report cuda:0 and compute on the CPU.

Operations on tensors of two devices, and reads of device memory by NumPy, are errors, as on CUDA. Waits of the host for
the device, copies and operations are counted.
"""

import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from support import simulated_graphs
from unstale.learner.device import arithmetic_restored

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
MEMORY_BYTES = 2**30
ROOT = Path(__file__).parents[2]

WAITING = {
    aten._local_scalar_dense.default: 1,  # .item(), float(), int(), bool(), if
    aten.is_nonzero.default: 1,
    aten.equal.default: 1,
    aten.nonzero.default: 1,
    aten.masked_select.default: 1,
    aten._unique2.default: 1,
    aten.unique_dim.default: 1,
    aten.unique_consecutive.default: 1,
    aten.repeat_interleave.Tensor: 1,
    aten.allclose.default: 1,
    aten.bincount.default: 2,  # reads the least and the largest number
}
"""How often the host waits in operations whose result is on the host, or has a shape that depends on values."""

_INDEXED = (aten.index.Tensor, aten._unsafe_index.Tensor)
_PUT = (aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
_NO_SCALARS = (aten.cat.default, aten.stack.default, aten.mv.default, aten.mv.out, aten.mm.default, aten.dot.default)
"""Operations that refuse also a number on the CPU, which others take as an argument of their kernel."""

_TORCH = os.path.dirname(torch.__file__)
_FUNCTORCH = os.path.join(_TORCH, "_functorch")
_DISPATCHING = (__file__, *(os.path.join(_TORCH, file) for file in ("_ops.py", "_compile.py", "_dynamo/eval_frame.py")))
"""Files whose frames lie between an operation and the code that calls it."""


class Event(NamedTuple):
    """A wait, or a copy. line: of the code that caused it, `file:number: code`. numbers: copied; 0 without a copy."""

    operation: str
    line: str
    numbers: int = 0

    def __str__(self) -> str:
        return f"{self.operation} at {self.line}"


class WaitsForDeviceError(AssertionError):
    """Work that must not wait waits for the device."""


class DeviceTensor(Tensor):
    """For C++ on the CPU, because builds without CUDA know no other device; for Python on cuda:0. host: its values."""

    host: Tensor
    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
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

    @property  # type: ignore[override]
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        assert isinstance(value, DeviceTensor), "a tensor of the device is replaced by one on the host"
        self.host = value.host
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        copy = kwargs.pop("copy", False)
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        device, dtype = device or CUDA, dtype or self.dtype
        if device.type == "cuda" and dtype == self.dtype and not copy:
            return self
        return aten._to_copy.default(self, dtype=dtype, device=device, non_blocking=non_blocking)

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def cuda(self, *_: Any) -> Tensor:
        return self

    def is_pinned(self, *_: Any) -> bool:
        return False

    def record_stream(self, _: object) -> None:
        """The memory is not freed before its work is done."""

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, data: Any, **kwargs: Any) -> Tensor:
        return torch.tensor(data, **{"dtype": self.dtype, "device": CUDA, **kwargs})

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copy = DeviceTensor(self.host.detach().clone())
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, self.requires_grad)
        memo[id(self)] = copy
        return copy

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.host!r})"

    def numpy(self, *, force: bool = False) -> Any:
        return self.detach().cpu().numpy() if force else self.__array__()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"values of shape {tuple(self.shape)} on the device are read by NumPy at {line_of_code()}")


class SimulatedDevice:
    """Counts the work of all threads in `simulated_device`.

    Attributes:
        synchronisations: Waits of the host for results: copies to the host, and reads of values and shapes.
        uploads: Copies to the device for which the host waits.
        launches: Operations that compute, not views.
        is_in_graph: A captured graph runs, whose operations were checked when they were captured.
    """

    def __init__(self) -> None:
        self.clear()
        self._may_wait = True
        self.is_in_graph = False

    def clear(self) -> None:
        self.synchronisations: list[Event] = []
        self.uploads: list[Event] = []
        self.launches = 0

    @property
    def waits(self) -> int:
        """How often the host waits, for results and for copies to the device."""
        return len(self.synchronisations) + len(self.uploads)

    @property
    def to_host(self) -> list[int]:
        """Numbers of each copy to the host."""
        return [wait.numbers for wait in self.synchronisations if wait.numbers]

    @contextmanager
    def without_waits(self) -> Iterator[None]:
        """Raises WaitsForDeviceError for waits and blocking copies in the block."""
        before, self._may_wait = self._may_wait, False
        try:
            yield
        finally:
            self._may_wait = before

    @contextmanager
    def one_launch(self) -> Iterator[None]:
        """The block is a graph."""
        before, self.is_in_graph = self.launches, True
        try:
            yield
        finally:
            self.launches, self.is_in_graph = before + 1, False

    def note_wait(self, operation: object, numbers: int = 0, times: int = 1) -> None:
        if times:
            self.synchronisations += [self._event(operation, numbers)] * times

    def note_upload(self, operation: object, numbers: int) -> None:
        self.uploads.append(self._event(operation, numbers))

    def _event(self, operation: object, numbers: int) -> Event:
        event = Event(str(operation), line_of_code(), numbers)
        if not self._may_wait:
            raise WaitsForDeviceError(f"the host waits for the device: {event}")
        return event


class _Operations(TorchDispatchMode):
    """Computes operations of one thread."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = {key: value for key, value in (kwargs or {}).items() if key != "pin_memory"}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
        if not on_device and not _is_cuda(kwargs.get("device")):
            return func(*args, **kwargs)
        if func is aten.copy_.default:
            return self._copy(func, args, kwargs)
        into_device = self._into_device(kwargs, on_device)
        if func is aten._to_copy.default:
            self._note_copy(func, args[0], into_device, bool(kwargs.get("non_blocking")))
        elif on_device:
            self._check_devices(func, args, tensors)
            self._note_waits(func, args, kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = CPU
        result = func(*tree_map(_on_host, args), **tree_map(_on_host, kwargs))
        self._device.launches += _computes(func)
        known = {id(tensor.host): tensor for tensor in on_device}
        return tree_map(lambda one: _on_device(one, known), result) if into_device else result

    def _into_device(self, kwargs: Mapping[str, Any], on_device: Sequence[DeviceTensor]) -> bool:
        """Whether the result is on the device. PyTorch's code of gradients names the CPU, where it sees its input."""
        target = kwargs.get("device")
        return target is None or _is_cuda(target) or (bool(on_device) and self._is_in_gradient())

    def _is_in_gradient(self) -> bool:
        """Whether PyTorch's code of a gradient or of `torch.func` runs, which makes tensors where it sees others."""
        if self._device.is_in_graph or torch._C._current_autograd_node() is not None:
            return True
        files = list(_files(sys._getframe(2)))
        return _FUNCTORCH in map(os.path.dirname, files) and files[0].startswith(_TORCH)

    def _copy(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        target, source = args[:2]
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking"))
        if not self._is_in_gradient():
            self._note_copy(func, source, isinstance(target, DeviceTensor), non_blocking)
        func(_on_host(target), _on_host(source))
        self._device.launches += 1
        result: Tensor = target
        return result

    def _note_copy(self, func: Any, source: Tensor, into_device: bool, non_blocking: bool) -> None:
        from_device = isinstance(source, DeviceTensor)
        if source.numel() == 0:
            return
        if from_device and not into_device:
            self._device.note_wait(func, source.numel())
        elif into_device and not from_device and not non_blocking:
            self._device.note_upload(func, source.numel())

    def _check_devices(self, func: Any, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        """Fail for tensors on the host that CUDA refuses, and count those that PyTorch copies to the device."""
        on_host = [tensor for tensor in tensors if not isinstance(tensor, DeviceTensor)]
        if not on_host or self._is_in_gradient():
            return
        indices = [one for one in args[1] if one is not None] if func in (*_INDEXED, *_PUT) else []
        for tensor in on_host:
            if any(tensor is one for one in indices) and isinstance(args[0], DeviceTensor):
                self._device.note_upload(func, tensor.numel())
                continue
            is_number = tensor.ndim == 0 and func not in _NO_SCALARS
            assert is_number, f"{func} with tensors on two devices at {line_of_code()}"
            if func is aten.where.self:
                self._device.note_upload(func, 1)

    def _note_waits(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if func in WAITING:
            if func is not aten.repeat_interleave.Tensor or kwargs.get("output_size") is None:
                self._device.note_wait(func, times=WAITING[func])
        elif func in (*_INDEXED, *_PUT):
            masks = [one for one in args[1] if isinstance(one, DeviceTensor) and one.dtype in (torch.bool, torch.uint8)]
            fills = func in _PUT and args[2].numel() == 1 and not isinstance(args[2], DeviceTensor)  # as `masked_fill`
            self._device.note_wait(func, times=0 if fills else len(masks))


def _files(frame: FrameType | None) -> Iterator[str]:
    """The files of the code that is executed, from the innermost on, without those that dispatch an operation."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in _DISPATCHING:
            yield file
        frame = frame.f_back


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _computes(func: Any) -> bool:
    """Whether an operation is no view, and does more than to allocate memory."""
    returns = func._schema.returns
    is_view = bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write
    return not is_view and not func._schema.name.startswith(("aten::empty", "aten::new_empty", "aten::_unsafe_view"))


def line_of_code() -> str:
    """The innermost line of this repository that is executed, and its caller in another file of the product.

    Lines of `tests/support`, such as those here, are left out.
    """
    lines = list(_lines(sys._getframe(1)))
    if not lines:
        return "an unknown line"
    (file, number), *callers = lines
    code = linecache.getline(str(ROOT / file), number).strip()
    caller = next((f", called at {other}:{at}" for other, at in callers if other != file), "")
    return f"{file}:{number}: {code}{'' if ', called at tests' in caller else caller}"


def _lines(frame: FrameType | None) -> Iterator[tuple[Path, int]]:
    """File and number of the lines of this repository that are executed, from the innermost on."""
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(ROOT) and "site-packages" not in file.parts and file.parent != Path(__file__).parent:
            yield file.relative_to(ROOT), frame.f_lineno
        frame = frame.f_back


def _on_host(value: Any) -> Any:
    return value.host if isinstance(value, DeviceTensor) else value


def _on_device(value: Any, known: Mapping[int, DeviceTensor]) -> Any:
    """The argument that an operation wrote to, or a new tensor."""
    if not isinstance(value, Tensor) or isinstance(value, DeviceTensor):
        return value
    return known[id(value)] if id(value) in known else DeviceTensor(value)


def _device_of(tensor: Tensor) -> torch.device:
    """Of a tensor on the host, or of the one that `torch.func` has wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    if isinstance(tensor, DeviceTensor):
        return CUDA
    device: torch.device = torch._C.TensorBase.device.__get__(tensor)
    return device


def _made(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.tensor` or `torch.as_tensor`, whose C++ code copies values to a device behind the dispatcher."""

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        tensor = make(data, *args, **kwargs)
        return tensor.to(device) if _is_cuda(device) else tensor

    return made


def _autocast(autocast: Any) -> Callable[..., Any]:
    """`torch.autocast`; the operations have the CPU's types there, because C++ believes the tensors to be on it."""
    return lambda device, *args, **kwargs: autocast("cpu" if _is_cuda(device) else device, *args, **kwargs)


@contextmanager
def simulated_device() -> Iterator[SimulatedDevice]:
    """Torch makes tensors of cuda:0 and computes with them in the block, also in threads that start there."""
    torch._C._ensureCUDADeviceGuardSet()
    device = SimulatedDevice()
    run = threading.Thread.run

    def run_on_device(thread: threading.Thread) -> None:
        with _Operations(device):
            run(thread)

    replaced: dict[str, Any] = {
        "torch.cuda._lazy_init": lambda: None,
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.default_generators": (torch.default_generator,),
        "torch.cuda.get_rng_state": lambda _=None: torch.get_rng_state(),
        "torch.cuda.memory_allocated": lambda _=None: 0,
        "torch.cuda.mem_get_info": lambda _=None: (MEMORY_BYTES, MEMORY_BYTES),
        "torch.cuda.get_device_properties": lambda _=None: SimpleNamespace(
            name="simulated", total_memory=MEMORY_BYTES, major=9, minor=0, multi_processor_count=1
        ),
        "torch.cuda.get_per_process_memory_fraction": lambda _=None: 1.0,
        "torch.cuda.set_per_process_memory_fraction": lambda *_: None,
        "torch.cuda.empty_cache": lambda: None,
        "torch.cuda.synchronize": lambda _=None: device.note_wait("torch.cuda.synchronize"),
        "torch.tensor": _made(torch.tensor),
        "torch.as_tensor": _made(torch.as_tensor),
        "torch.autocast": _autocast(torch.autocast),
        "torch.Tensor.device": property(_device_of),
        "torch.Tensor.pin_memory": lambda tensor, *_: tensor,
        **simulated_graphs.replaced(device),
        "threading.Thread.run": run_on_device,
    }
    future = torch.__future__
    overwrites = future.get_overwrite_module_params_on_conversion()
    with ExitStack() as stack:
        stack.enter_context(arithmetic_restored())
        stack.enter_context(patch.dict(os.environ))
        for name, value in replaced.items():
            stack.enter_context(patch(name, value))
        future.set_overwrite_module_params_on_conversion(True)
        stack.callback(future.set_overwrite_module_params_on_conversion, overwrites)
        stack.enter_context(_Operations(device))
        yield device
