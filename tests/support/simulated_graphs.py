"""CUDA graphs and streams on the simulated device: captured work is replayed without Python code between its parts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from support.simulated_device import SimulatedDevice


class Recording(TorchDispatchMode):
    """Records operations with their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    @contextmanager
    def captured(self) -> Iterator[None]:
        """Record the operations of the block. The buffers that it writes to have their former values after it."""
        buffers = _Undone()
        with buffers, self:
            yield
        buffers.undo()

    def replay(self) -> None:
        """Repeat the operations on the same buffers."""
        made: dict[int, Tensor] = {}

        def current(value: Any) -> Any:
            return made.get(id(value), value) if isinstance(value, Tensor) else value

        with torch.no_grad():
            for func, args, kwargs, before in self.calls:
                after = func(*tree_map(current, args), **tree_map(current, kwargs))
                for old, new in zip(_tensors(before), _tensors(after), strict=True):
                    made.setdefault(id(old), new)


class SimulatedGraphs:
    """Graphs on the CPU, instead of `CudaGraphs`.

    Attributes:
        refuses: Captures fail.
        done: Names of the methods that were called, in order.
    """

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.done: list[str] = []

    def warm_up(self, work: Callable[[], None]) -> None:
        self.done.append("warm-up")
        work()

    def capture(self, work: Callable[[], None]) -> Callable[[], None] | None:
        self.done.append("capture")
        if self.refuses:
            return None
        recording = Recording()
        with recording.captured():
            work()

        def replay() -> None:
            self.done.append("replay")
            recording.replay()

        return replay

    def upload(self, buffer: Tensor, values: Tensor) -> None:
        self.done.append("upload")
        buffer.copy_(values)

    def mark(self) -> Callable[[], None]:
        self.done.append("mark")
        return lambda: self.done.append("wait")


class _Undone(TorchDispatchMode):
    """Keeps the values of tensors before a copy to them or an addition, because a capture computes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._before: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func._schema.is_mutable and isinstance(args[0], Tensor):
            self._before.append((args[0], args[0].clone()))
        return func(*args, **(kwargs or {}))

    def undo(self) -> None:
        for tensor, before in reversed(self._before):
            tensor.copy_(before)


def _tensors(value: Any) -> list[Tensor]:
    values = value if isinstance(value, list | tuple) else [value]
    return [one for one in values if isinstance(one, Tensor)]


class _Queue:
    """A stream or an event: all work is done when it is queued."""

    def __init__(self, device: "SimulatedDevice") -> None:
        self._device = device

    def synchronize(self) -> None:
        self._device.note_wait(f"{type(self).__name__[1:]}.synchronize")

    def query(self) -> bool:
        return True

    def _continue(self, *_: Any) -> None:
        """Later work waits on the device, not on the host."""


class _Stream(_Queue):
    wait_stream = wait_event = _Queue._continue

    def record_event(self, *_: Any) -> "_Event":
        return _Event(self._device)


class _Event(_Queue):
    record = wait = _Queue._continue


class _Graph:
    """A `torch.cuda.CUDAGraph`."""

    def __init__(self, device: "SimulatedDevice") -> None:
        self._device = device
        self._recording = Recording()

    @contextmanager
    def capture(self) -> Iterator[None]:
        with self._device.without_waits(), self._recording.captured():
            yield

    def replay(self) -> None:
        with self._device.one_launch():
            self._recording.replay()


def replaced(device: "SimulatedDevice") -> dict[str, Any]:
    """Functions of PyTorch for streams and graphs, by name."""
    return {
        "torch.cuda.Stream": lambda *_, **__: _Stream(device),
        "torch.cuda.current_stream": lambda *_: _Stream(device),
        "torch.cuda.stream": nullcontext,
        "torch.cuda.Event": lambda *_, **__: _Event(device),
        "torch.cuda.CUDAGraph": lambda *_, **__: _Graph(device),
        "torch.cuda.graph": lambda graph, **_: graph.capture(),
        "torch.cuda.graph_pool_handle": lambda: (0, 0),
    }
