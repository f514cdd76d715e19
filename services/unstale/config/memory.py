"""Allocates memory for a policy's state of all clients: on the device, or pageable, pinned or mapped on the host."""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from unstale.device_memory import memory_bytes
from unstale.errors import UserError
from unstale.policies.policy import host_memory

Allocate = Callable[[int, int], Tensor]
"""(rows, columns) -> zeros [rows, columns], float32."""


def allocator(
    kind: str, folder: str | None, where: torch.device, device_bytes: Callable[[torch.device], int] = memory_bytes
) -> Allocate:
    """A function that allocates memory of a kind. It raises UserError where there is too little.

    Args:
        kind: `device`, `host`, `pinned` (faster copies to a CUDA device), `mapped` (an unlinked temporary file), or
            `auto`: `device` up to half of the memory of a CUDA device, then `host`.
        folder: Folder of the mapped file; None for the system's temporary folder.
        where: The policy's device.
        device_bytes: Memory of a CUDA device, read at the first allocation.

    Raises:
        UserError: Memory on the device or pinned memory without CUDA, or a folder that does not exist.
    """
    on_device = partial(_allocated, partial(torch.zeros, device=where))
    on_host = partial(_allocated, host_memory)
    if kind in ("device", "pinned"):
        if where.type != "cuda":
            raise UserError(
                f"policy.memory is '{kind}' with device {where}, expected auto, host or mapped without CUDA"
            )
        return on_device if kind == "device" else partial(_allocated, partial(torch.zeros, pin_memory=True))
    if kind == "auto" and where.type == "cuda":
        return _WhileItFits(on_device, on_host, partial(device_bytes, where))
    if kind == "mapped":
        path = Path(folder or tempfile.gettempdir()).expanduser()
        if not path.is_dir():
            raise UserError(f"policy.memory_folder is '{path}', expected a folder that exists")
        return partial(_mapped, path)
    return on_host


def fits_device(kind: str, size_bytes: int, where: torch.device, device_bytes: Callable[[torch.device], int]) -> bool:
    """Whether a policy's memory belongs on its device: anywhere but on CUDA always. Arguments as for `allocator`."""
    if where.type != "cuda" or kind == "device":
        return True
    return kind == "auto" and size_bytes <= device_bytes(where) // 2


class _WhileItFits:
    """Allocates on a device up to half of its memory. From the first memory beyond that on, it uses the host."""

    def __init__(self, on_device: Allocate, on_host: Allocate, device_bytes: Callable[[], int]) -> None:
        self._on_device, self._on_host, self._device_bytes = on_device, on_host, device_bytes
        self._left_bytes: int | None = None

    def __call__(self, rows: int, columns: int) -> Tensor:
        if self._left_bytes is None:
            self._left_bytes = self._device_bytes() // 2
        size_bytes = 4 * rows * columns
        if size_bytes > self._left_bytes:
            self._left_bytes = -1  # later memories belong to this one, so they follow it, also small ones
            return self._on_host(rows, columns)
        self._left_bytes -= size_bytes
        return self._on_device(rows, columns)


def _allocated(allocate: Allocate, rows: int, columns: int) -> Tensor:
    try:
        return allocate(rows, columns)
    except RuntimeError:
        raise UserError(
            f"the policy's memory of {rows:,} x {columns:,} numbers, {4 * rows * columns:,} bytes, cannot be "
            "allocated; set policy.memory to mapped, or use smaller policy settings or fewer clients"
        ) from None


def _mapped(folder: Path, rows: int, columns: int) -> Tensor:
    size = 4 * rows * columns
    try:
        with tempfile.NamedTemporaryFile(prefix="unstale-memory-", dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # otherwise a write to a full disk is a SIGBUS
            else:
                file.truncate(size)
            # The mapping outlives the file name, which is deleted here.
            return torch.from_file(file.name, shared=True, size=rows * columns).view(rows, columns)
    except OSError as error:
        raise UserError(
            f"policy.memory_folder '{folder}' cannot hold {size:,} bytes ({(error.strerror or str(error)).lower()}); "
            "name a folder with more free space"
        ) from None
