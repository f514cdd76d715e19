"""Memory that two processes share: a row for each job, of what it starts from and then of what it made.

Legend: S slots, d parameters, b numbers of float buffers, D numbers of a slot: d + b, and d more where a second vector
comes along.
"""

import mmap
import os
import tempfile

import torch
from torch import Tensor

from unstale.learner.versions import Version
from unstale_proto.limits import FLOAT_BYTES

SLOTS = 64
"""Jobs of one process at a time. Memory is taken when a slot is first used, so unused ones cost nothing."""


class Slots:
    """Opened in both processes on one file that has no name, so that it is gone with them."""

    def __init__(self, descriptor: int, dimension: int, buffers: int, *, extra: bool) -> None:
        """descriptor: of a file of `size_bytes`, which may be closed afterwards. dimension: d. buffers: b. extra:
        whether a second vector comes along."""
        self._dimension = dimension
        self._behind = dimension + buffers
        self._numbers = _numbers(dimension, buffers, extra=extra)
        memory = mmap.mmap(descriptor, SLOTS * FLOAT_BYTES * self._numbers)
        self._matrix_SD = torch.frombuffer(memory, dtype=torch.float32).view(SLOTS, self._numbers)

    def put(self, slot: int, *parts: Tensor | None) -> None:
        """Write what there is of parameters or their change, buffers and second vector, which follow one another."""
        row_D = self._matrix_SD[slot]
        offset = 0
        for part in parts:
            if part is not None and part.numel():
                row_D[offset : offset + part.numel()].copy_(part)
                offset += part.numel()
        assert offset == self._numbers, f"{offset} numbers, expected {self._numbers}"

    def version(self, slot: int) -> Version:
        """What was put there, as the base of a job: views."""
        vector_d, buffers_b, extra_d = self.parts(slot)
        return Version(model_d=vector_d, buffers_b=buffers_b, extra_d=extra_d)

    def parts(self, slot: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """What was put there: [d], [b] and [d] or None, views."""
        row_D = self._matrix_SD[slot]
        extra_d = row_D[self._behind :]
        return (
            row_D[: self._dimension],
            row_D[self._dimension : self._behind],
            extra_d if len(extra_d) else None,
        )


def make_file(dimension: int, buffers: int, *, extra: bool) -> int:
    """The descriptor of a file for `Slots`: in memory where the system can, else among its temporary files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("unstale-slots")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, SLOTS * FLOAT_BYTES * _numbers(dimension, buffers, extra=extra))
    return descriptor


def _numbers(dimension: int, buffers: int, *, extra: bool) -> int:
    return dimension + buffers + (dimension if extra else 0)
