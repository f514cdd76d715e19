"""The interface of other machines that invert updates."""

from concurrent.futures import Future
from typing import Protocol


class Executor(Protocol):
    """Computes groups of inversions on other machines."""

    def submit(self, group: bytes) -> "Future[bytes]":
        """Start to compute a group: the tensors of `remote_inversion.packed` as safetensors. Returns at once.

        The future has the tensors of `remote_inversion.computed` as safetensors, or fails with WorkerLostError.
        """

    def stop(self) -> None:
        """Cancel all groups, now and later. Any thread."""
