"""Allocates host memory for a policy's state of all clients: pageable, pinned or memory-mapped."""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from unstale.errors import UserError
from unstale.policies.policy import host_memory

Allocate = Callable[[int, int], Tensor]
"""(rows, columns) -> zeros [rows, columns], float32, in host memory."""


def allocator(kind: str, folder: str | None, where: torch.device) -> Allocate:
    """A function that allocates memory of a kind. It raises UserError where there is too little.

    Args:
        kind: `host`, `pinned` (faster copies to a CUDA device) or `mapped` (an unlinked temporary file).
        folder: Folder of the mapped file; None for the system's temporary folder.
        where: The policy's device.

    Raises:
        UserError: Pinned memory without CUDA, or a folder that does not exist.
    """
    if kind == "pinned":
        if where.type != "cuda":
            raise UserError(f"policy.memory is 'pinned' with device {where}, expected host or mapped without CUDA")
        return partial(_allocated, partial(torch.zeros, pin_memory=True))
    if kind == "mapped":
        path = Path(folder or tempfile.gettempdir()).expanduser()
        if not path.is_dir():
            raise UserError(f"policy.memory_folder is '{path}', expected a folder that exists")
        return partial(_mapped, path)
    return partial(_allocated, host_memory)


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
