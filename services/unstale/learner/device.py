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
