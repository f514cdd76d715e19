"""The memory of a CUDA device, as far as this process may use it."""

import torch


def memory_bytes(device: torch.device) -> int:
    """Memory of a CUDA device, or the share of it that this process may use.

    Free memory differs between runs, and a resumed run must choose as before.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(torch.cuda.mem_get_info(index)[1] * torch.cuda.get_per_process_memory_fraction(index))


def limit_memory(device: torch.device, share: float) -> None:
    """Limit this process to a share of a CUDA device's memory: more is an OutOfMemoryError. Elsewhere nothing changes.

    share: in (0, 1].
    """
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share, device.index or 0)
