"""Copies rows of updates to a CUDA device as they arrive, so that a round is there when it closes.

Legend: R rows of a block, K <= R rows of a round; D numbers of a row.
"""

from collections import deque

import torch
from torch import Tensor

MATRICES = 2  # on the device: one is filled while the other one is aggregated


class RowUploads:
    """Matrices on a CUDA device, and a stream for copies to them. No thread waits for a copy.

    The receiving thread calls everything but `wait` and `give_back`, which belong to the thread that applies rounds.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._made = 0
        self._free: deque[tuple[Tensor, torch.cuda.Event]] = deque()  # each with the end of its last round

    def matrix(self, rows: int, numbers: int) -> Tensor | None:
        """Return memory [R, D] for the rows of a block, of unspecified content; None while other blocks use it all."""
        if self._free:
            matrix_RD, end_of_round = self._free.popleft()
            self._stream.wait_event(end_of_round)
            return matrix_RD
        if self._made == MATRICES:
            return None
        self._made += 1
        # Memory that was freed in another stream may still be in use there.
        with torch.cuda.stream(self._stream):
            return torch.empty(rows, numbers, device=self._device)

    def copy(self, row_D: Tensor, target_D: Tensor) -> None:
        """Start to copy a row, which must not change until its round has been applied. row_D: in pinned memory."""
        with torch.cuda.stream(self._stream):
            target_D.copy_(row_D, non_blocking=True)

    def copied(self) -> torch.cuda.Event:
        """Return the end of all copies so far."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def wait(self, copied: torch.cuda.Event) -> None:
        """Let later work of the calling thread's stream begin after these copies."""
        torch.cuda.current_stream(self._device).wait_event(copied)

    def give_back(self, matrix_RD: Tensor) -> None:
        """Let the memory be filled again after the work so far of the calling thread's stream."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._free.append((matrix_RD, event))
