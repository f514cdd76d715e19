"""The device of the learner's tensors, the arithmetic there, and the cores of this process."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch

from unstale.errors import UserError

Precision: TypeAlias = Literal["strict", "tf32"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

_EXPECTED = "expected auto, cpu, cuda, cuda:<number> or mps"


def choose(name: str) -> torch.device:
    """The device of a name; `auto` is the first of CUDA, MPS and CPU that this machine has.

    Raises UserError if the name is no device, or this machine or its PyTorch lacks the device.
    """
    if name == "auto":
        other = "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device("cuda" if torch.cuda.is_available() else other)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device is {name!r}, {_EXPECTED}") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"device is {name!r}, {_EXPECTED}")
    _check_is_there(device, name)
    return device


def _check_is_there(device: torch.device, name: str) -> None:
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"device is {name!r}, but this machine has none; use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device is {name!r}, but PyTorch finds {torch.cuda.device_count()} CUDA devices; use auto or cpu"
        )


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_precision(device: torch.device, precision: Precision) -> None:
    """Set the arithmetic of this process on a CUDA device; to be called before the process computes there.

    Matrix products and convolutions use float32 or TF32, and algorithms are deterministic as far as PyTorch has such
    ones; it warns of others. On other devices nothing changes.
    """
    if device.type != "cuda":
        return
    # cuBLAS reads it when a process makes its first handle.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    name = "tf32" if precision == "tf32" else "ieee"
    _Arithmetic(name, name, name).apply()


@contextmanager
def arithmetic_restored() -> Iterator[None]:
    """Restore after the block the settings that `set_precision` changes."""
    before = _Arithmetic.current()
    try:
        yield
    finally:
        if _Arithmetic.current() != before:
            before.apply()


_CUDNN: Any = torch.backends.cudnn
_MEMORY: Any = torch.utils.deterministic
"""Modules whose attributes PyTorch does not declare."""


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    """Settings of PyTorch for CUDA: float32 precisions by PyTorch's names, and whether algorithms are deterministic."""

    products: str
    convolutions: str
    recurrent: str
    deterministic: int = 1  # 1: PyTorch warns of an operation that is not
    is_cudnn_deterministic: bool = True
    benchmarks_cudnn: bool = False  # choose an algorithm by its speed in a trial
    fills_memory: bool = False  # fill uninitialised memory, which nothing here reads

    @classmethod
    def current(cls) -> "_Arithmetic":
        return cls(
            products=torch.backends.cuda.matmul.fp32_precision,
            convolutions=_CUDNN.conv.fp32_precision,
            recurrent=_CUDNN.rnn.fp32_precision,
            deterministic=torch.get_deterministic_debug_mode(),
            is_cudnn_deterministic=_CUDNN.deterministic,
            benchmarks_cudnn=_CUDNN.benchmark,
            fills_memory=_MEMORY.fill_uninitialized_memory,
        )

    def apply(self) -> None:
        matmul, cudnn = torch.backends.cuda.matmul, _CUDNN
        with warnings.catch_warnings(action="ignore"):  # some versions call these deprecated
            # Reading them raises an error where they differ from the newer settings below.
            matmul.allow_tf32 = self.products == "tf32"
            cudnn.allow_tf32 = self.convolutions == "tf32"
        matmul.fp32_precision = self.products
        cudnn.conv.fp32_precision = self.convolutions
        cudnn.rnn.fp32_precision = self.recurrent
        cudnn.deterministic = self.is_cudnn_deterministic
        cudnn.benchmark = self.benchmarks_cudnn
        torch.set_deterministic_debug_mode(self.deterministic)
        _MEMORY.fill_uninitialized_memory = self.fills_memory


def compute_here() -> None:
    """Apply the process's number of torch threads to BLAS in the calling thread.

    BLAS has a thread count for each calling thread, which PyTorch sets only before its first parallel operation there.
    Without this call a dot product in a new thread takes 2 ms instead of 5 us on a busy machine.
    """
    torch.set_num_threads(torch.get_num_threads())
