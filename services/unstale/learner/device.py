"""Where the learner's tensors lie."""

import torch

from unstale.errors import UserError

_EXPECTED = "expected auto, cpu, cuda, cuda:<number> or mps"


def choose(name: str) -> torch.device:
    """The device of that name; `auto` is CUDA where there is one, else MPS, else the CPU.

    Raises UserError for a name that is no device, and for a device that this machine or its PyTorch does not
    have.
    """
    if name == "auto":
        return torch.device(_best())
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device is {name!r}, {_EXPECTED}") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"device is {name!r}, {_EXPECTED}")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"device is {name!r}, but this machine has none; use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device is {name!r}, but PyTorch finds {torch.cuda.device_count()} CUDA devices; use auto or cpu"
        )
    return device


def _best() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def compute_here() -> None:
    """Have the calling thread compute with as many threads as `torch.set_num_threads` said in another one.

    BLAS keeps a number of its own for each thread. PyTorch sets it there before the first operation that it spreads
    itself, and not before others: a dot product in a new thread took 2 ms instead of 5 us where a core was busy,
    because BLAS spread it over all cores and waited.
    """
    torch.set_num_threads(torch.get_num_threads())
