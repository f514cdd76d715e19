"""A simulated device: refuses host reads in work that must not wait, and replays captured work like a CUDA graph."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

aten = torch.ops.aten

WAITING = {
    aten._local_scalar_dense.default: "a value is read on the host (.item(), float(), tolist(), if)",
    aten.is_nonzero.default: "a condition is read on the host",
    aten.equal.default: "a comparison is read on the host",
    aten.nonzero.default: "the shape of a result depends on values",
    aten.masked_select.default: "the shape of a result depends on values",
    aten.lift_fresh.default: "a tensor is made from values on the host (torch.tensor)",
}
"""Operations for which a CUDA device copies between its memory and the host's, and waits."""


class WaitsForDeviceError(AssertionError):
    """Work waits for the device, or cannot be captured."""


def _wait(tensor: Tensor, *_: Any, **__: Any) -> None:
    raise WaitsForDeviceError(f"values of shape {tuple(tensor.shape)} are copied to the host")


class NoWaiting(TorchDispatchMode):
    """Raises for an operation that waits for the device. launches: operations that compute, not views."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0
        self._patches = ExitStack()

    def __enter__(self) -> Self:
        for name in ("tolist", "numpy", "__array__"):  # no operations on the CPU
            self._patches.enter_context(patch.object(Tensor, name, _wait))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patches.close()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in WAITING:
            raise WaitsForDeviceError(f"{func}: {WAITING[func]}")
        kwargs = kwargs or {}
        if func is aten._to_copy.default and kwargs.get("device") not in (None, args[0].device):
            raise WaitsForDeviceError(f"{func}: a copy to {kwargs['device']}")
        if func is aten.index.Tensor and any(index is not None and index.dtype == torch.bool for index in args[1]):
            raise WaitsForDeviceError(f"{func}: the shape of a result depends on values")
        if func is aten.where.self and any(value.ndim == 0 for value in args):
            raise WaitsForDeviceError(f"{func}: a number is copied to the device")
        returns = func._schema.returns
        is_view = bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write
        self.launches += not is_view
        return self.run(func, args, kwargs)

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return func(*args, **kwargs)


class _Recording(NoWaiting):
    """Records operations with their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = []

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, result))
        return result


class SimulatedGraphs:
    """Graphs on the CPU. A replay repeats the recorded operations on the same buffers, without Python code between.

    Attributes:
        refuses: Captures fail.
        done: Names of the methods that were called, in order.
    """

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.done: list[str] = []

    def warm_up(self, work: Callable[[], None]) -> None:
        self.done.append("warm-up")
        with NoWaiting():
            work()

    def capture(self, work: Callable[[], None]) -> Callable[[], None] | None:
        self.done.append("capture")
        if self.refuses:
            return None
        buffers = _Undone()
        with buffers, (recording := _Recording()):
            work()
        buffers.undo()
        return lambda: self._replay(recording)

    def _replay(self, recording: _Recording) -> None:
        self.done.append("replay")
        made: dict[int, Tensor] = {}

        def current(value: Any) -> Any:
            return made.get(id(value), value) if isinstance(value, Tensor) else value

        with torch.no_grad():
            for func, args, kwargs, before in recording.calls:
                after = func(*tree_map(current, args), **tree_map(current, kwargs))
                for old, new in zip(_tensors(before), _tensors(after), strict=True):
                    made.setdefault(id(old), new)

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
