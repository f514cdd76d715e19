"""The device of the learner's tensors, and the cores of this process."""

import os

import torch

from unstale.errors import UserError

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


def compute_here() -> None:
    """Apply the process's number of torch threads to BLAS in the calling thread.

    BLAS has a thread count for each calling thread, which PyTorch sets only before its first parallel operation there.
    Without this call a dot product in a new thread takes 2 ms instead of 5 us on a busy machine.
    """
    torch.set_num_threads(torch.get_num_threads())
