"""CUDA graphs, which replay a fixed sequence of kernels with one launch."""

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Work = Callable[[], None]
"""Operations on tensors that keep their addresses, without a value on the host."""

log = logging.getLogger("unstale.graphs")


class Graphs(Protocol):
    """Computes work on a device, and captures it as graphs."""

    def warm_up(self, work: Work) -> None:
        """Compute work in the stream of later captures, so that libraries choose algorithms and reserve memory."""

    def capture(self, work: Work) -> Work | None:
        """A replay of the work; None where it cannot be captured. Computes nothing."""

    def upload(self, buffer: Tensor, values: Tensor) -> None:
        """Copy values on the host to a buffer, without waiting."""

    def mark(self) -> Work:
        """A function that waits for all work up to now."""


class CudaGraphs(Graphs):
    """Graphs of a CUDA device, which share a stream and memory.

    They may share memory because they are computed one after the other, and nothing in it is needed afterwards.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._is_usable = True  # until a capture fails

    def warm_up(self, work: Work) -> None:
        outer = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outer)
        with torch.cuda.stream(self._stream):
            work()
        outer.wait_stream(self._stream)

    def capture(self, work: Work) -> Work | None:
        if not self._is_usable:
            return None
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may use the device meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                work()
        except RuntimeError as error:
            self._is_usable = False
            why = str(error).partition("\n")[0]
            log.warning("operations on %s cannot be captured as CUDA graphs, and take longer: %s", self._device, why)
            return None
        return graph.replay

    def upload(self, buffer: Tensor, values: Tensor) -> None:
        buffer.copy_(values.pin_memory(), non_blocking=True)

    def mark(self) -> Work:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event.synchronize
