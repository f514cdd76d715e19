"""Memory that two processes share: a row for each job, with its base and later its result.

Legend: R rows, d parameters, b numbers of float buffers, D numbers of a row: d + b, and d more for a second vector.
"""

import mmap
import os
import tempfile

import torch
from torch import Tensor

from unstale.learner.versions import Version
from unstale_proto.limits import FLOAT_BYTES

ROWS = 64
"""Jobs of one process at a time. A row takes memory when it is first used."""


class SharedRows:
    """Rows in a file without a name, which ends with the processes that have it open."""

    def __init__(self, descriptor: int, dimension: int, buffers: int, *, extra: bool) -> None:
        """descriptor: from `make_file`; may be closed afterwards. dimension: d. buffers: b. extra: whether a row has a
        second vector.
        """
        self._dimension = dimension
        self._numbers = _numbers(dimension, buffers, extra=extra)
        self._extra_start = dimension + buffers
        memory = mmap.mmap(descriptor, ROWS * FLOAT_BYTES * self._numbers)
        self._matrix_RD = torch.frombuffer(memory, dtype=torch.float32).view(ROWS, self._numbers)

    def write(self, row: int, *parts: Tensor | None) -> None:
        """Write parameters or their change, buffers and second vector, as far as there are any."""
        row_D = self._matrix_RD[row]
        offset = 0
        for part in parts:
            if part is not None and part.numel():
                row_D[offset : offset + part.numel()].copy_(part)
                offset += part.numel()
        assert offset == self._numbers, f"{offset} numbers, expected {self._numbers}"

    def version(self, row: int) -> Version:
        """The base of a job: views."""
        vector_d, buffers_b, extra_d = self.parts(row)
        return Version(model_d=vector_d, buffers_b=buffers_b, extra_d=extra_d)

    def parts(self, row: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """[d], [b] and [d] or None, views."""
        row_D = self._matrix_RD[row]
        extra_d = row_D[self._extra_start :]
        return (row_D[: self._dimension], row_D[self._dimension : self._extra_start], extra_d if len(extra_d) else None)


def make_file(dimension: int, buffers: int, *, extra: bool) -> int:
    """The descriptor of a file for `SharedRows`: in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("unstale-rows")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, ROWS * FLOAT_BYTES * _numbers(dimension, buffers, extra=extra))
    return descriptor


def _numbers(dimension: int, buffers: int, *, extra: bool) -> int:
    return dimension + buffers + (dimension if extra else 0)
