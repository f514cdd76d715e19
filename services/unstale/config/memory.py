"""Allocates a policy's memory of all clients: pageable, pinned or memory-mapped memory of the host."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from unstale.errors import UserError
from unstale.policies.policy import host_memory

Allocate = Callable[[int, int], Tensor]
"""(rows, columns) -> zeros, float32, on the host."""


def allocator(kind: str, folder: str | None, where: torch.device) -> Allocate:
    """A function that allocates zeros [rows, columns], float32.

    Args:
        kind: `host`, `pinned` (faster copies to a CUDA device) or `mapped` (an unlinked file, gone with the process).
        folder: Of the mapped file; None for the system's temporary folder.
        where: The policy's device.

    Raises:
        UserError: Pinned memory without CUDA, or a folder that does not exist.
    """
    if kind == "pinned":
        if where.type != "cuda":
            raise UserError(f"policy.memory is 'pinned' with device {where}, expected host or mapped without CUDA")
        return lambda rows, columns: torch.zeros(rows, columns, pin_memory=True)
    if kind == "mapped":
        path = Path(folder or tempfile.gettempdir()).expanduser()
        if not path.is_dir():
            raise UserError(f"policy.memory_folder is '{path}', expected a folder that exists")
        return lambda rows, columns: _mapped(path, rows, columns)
    return _on_the_host


def _on_the_host(rows: int, columns: int) -> Tensor:
    try:
        return host_memory(rows, columns)
    except RuntimeError:
        raise UserError(
            f"the policy's memory of {rows:,} x {columns:,} numbers, {4 * rows * columns:,} bytes, cannot be had; set "
            "policy.memory to mapped, or take a smaller setting or fewer clients"
        ) from None


def _mapped(folder: Path, rows: int, columns: int) -> Tensor:
    size = 4 * rows * columns
    try:
        with tempfile.NamedTemporaryFile(prefix="unstale-memory-", dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # else a full disk is a SIGBUS later
            else:
                file.truncate(size)
            # The mapping outlives the file name, which is deleted here.
            return torch.from_file(file.name, shared=True, size=rows * columns).view(rows, columns)
    except OSError as error:
        raise UserError(
            f"policy.memory_folder '{folder}' cannot hold {size:,} bytes ({(error.strerror or str(error)).lower()}); "
            "name one with more room"
        ) from None
