"""Updates as they come in: payload bytes become rows of the matrix that a round will be made of, in one copy.

Rows lie in blocks of host memory, one block a round. A round takes the oldest block as it is, so nothing is
gathered; afterwards the block is used again, because page faults of fresh memory cost as much as the copy.

Legend: R rows of a block, K <= R rows of a round, in order of arrival; d parameters; D numbers of a row: d, and what
comes behind (PROTOCOL.md 9).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from unstale import flat
from unstale.learner.row_uploads import RowUploads
from unstale.training.local import Kind

Vector: TypeAlias = "np.ndarray[tuple[int], np.dtype[Any]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedUpdate:
    """What an update says about itself, kept beside its row. The journal stores each field in a column of its name."""

    client_id: int
    task_id: int  # of the task that it answers
    base_version: int  # that it was computed from
    num_examples: int  # n_i, that the client holds, >= 1
    batch_examples: int  # m_i, behind the update, >= 1
    loss: float  # mean training loss, nats
    local_rate: float  # eta_l that the client used, > 0
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the training, by name

    def in_round(self, staleness: int) -> "RoundUpdate":
        """The same, with what only the coordinator knows."""
        return RoundUpdate(**dict(zip(_STAGED_NAMES, _staged_values(self), strict=True)), staleness=staleness)


_STAGED_NAMES = tuple(field.name for field in fields(StagedUpdate))
_staged_values = attrgetter(*_STAGED_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundUpdate(StagedUpdate):
    """What is known about one row of a round."""

    staleness: int  # version being aggregated into - base_version, rounds


class Rows(Protocol):
    """The rows of a round that do not lie in memory together, to be read in parts."""

    @property
    def shape(self) -> tuple[int, int]:
        """[K, D]."""
        ...

    def columns(self, start: int, end: int) -> Tensor:
        """Columns start to end of all rows: [K, end - start] float32 in host memory, valid until the next call."""
        ...


class Row(NamedTuple):
    """Memory for one update, in three ways. vector_D, array_D: [D] float32. data: its little-endian bytes."""

    vector_D: Tensor
    array_D: Vector
    data: memoryview

    @classmethod
    def of(cls, vector_D: Tensor) -> Self:
        """vector_D: in host memory, contiguous."""
        return cls(vector_D, vector_D.numpy(), flat.to_bytes(vector_D))


class _Block:
    """Rows filled from the first on, with the handle of each and what is kept beside it."""

    def __init__(self, matrix_RD: Tensor) -> None:
        self.matrix_RD = matrix_RD
        # Made once: the way from a matrix to the bytes of a row is six calls of torch and NumPy.
        self.rows = [Row.of(vector_D) for vector_D in matrix_RD.unbind()]
        self.empty()

    def empty(self) -> None:
        self.handles: list[int] = []
        self.updates: list[StagedUpdate] = []
        self.is_closed = False
        self.uploaded_RD: Tensor | None = None  # the rows on a device, as far as they are kept

    @property
    def is_full(self) -> bool:
        return self.is_closed or len(self.handles) == len(self.rows)


@dataclass(eq=False, slots=True)
class Round:
    """The rows of one round, lent out by `Staging.take` until `release`."""

    rows: Tensor | Rows  # [K, D] float32 in host memory, a view, or elsewhere
    updates: tuple[StagedUpdate, ...]  # K entries, row by row
    give_back: Callable[[], object] | None = None  # called once, by `release`
    upload: Callable[[], Tensor] | None = None  # gives the copy of the rows on a device

    def ready(self) -> Tensor | Rows:
        """The rows, or their copy on a device, for which the calling thread's stream waits there, not the thread."""
        return self.rows if self.upload is None else self.upload()

    def release(self) -> None:
        """Nothing reads the rows any more. Any thread, if they have no copy; else the one that called `ready`."""
        give_back, self.give_back = self.give_back, None
        if give_back is not None:
            give_back()


class Staging:
    """Rows for updates that have come in and wait for their round.

    One thread, the one that receives, calls everything here but `Round.release`, which may come from the
    thread that applies rounds: the list of free blocks is all that the two share, and appending to a deque
    and popping from it are atomic. `take` belongs to the receiving thread too, because it decides where the
    next row goes. One row is being written at a time: `row`, then `keep` or `discard`.

    Host memory is at most blocks_max * rows_per_block * 4 D bytes, reserved block by block when needed and
    touched row by row. Nothing holds the receiver back: there are enough blocks because the coordinator
    bounds how many kept rows no released round holds, in `CoordinatorSettings.unaggregated_max`. With at most
    U of them and one round lent at a time, U // R + 2 blocks are enough: one is lent, and the U rows that
    may wait and the one being written lie in at most U // R + 1, all full but the last.
    With R = 1 a round may be made of any rows that are kept, not only of the oldest: more than one are gathered, in a
    copy.
    """

    def __init__(
        self,
        row_numbers: int,
        rows_per_block: int,
        *,
        blocks_max: int,
        pin: bool = False,
        uploads: RowUploads | None = None,
    ) -> None:
        """row_numbers: D, >= 1. rows_per_block: R, most updates of a round, >= 1. blocks_max: >= 2.

        pin: page-locked memory, for copies to a CUDA device. uploads: copies kept rows there; only for R > 1.
        """
        assert min(row_numbers, rows_per_block, blocks_max - 1) >= 1, (row_numbers, rows_per_block, blocks_max)
        assert uploads is None or rows_per_block > 1, "rows that lie by themselves are copied when they are gathered"
        self._row_numbers = row_numbers
        self._rows_per_block = rows_per_block
        self._blocks_max = blocks_max
        self._pin = pin
        self._uploads = uploads
        self._waiting: deque[_Block] = deque()
        self._free: deque[_Block] = deque()
        self._blocks = 0
        self._handles = 0
        self._being_written: int | None = None

    def restore(
        self,
        rows: Iterable[tuple[int, StagedUpdate, Callable[[Tensor], None]]],
        handles: int,
        *,
        closed: int | None = None,
    ) -> None:
        """Hold what another one held.

        rows: handle, what was kept beside it, and what fills the row, in the order of the handles. handles: how many it
        had given; the next is this. closed: last handle of a round that was closed and is taken next, however few rows
        it has; those behind it belong to the round after it.
        """
        for handle, update, fill in rows:
            self._handles = handle
            _, row = self.row()
            fill(row.vector_D)
            self.keep(handle, update)
            if handle == closed and self._waiting:
                self._waiting[-1].is_closed = True
        self._handles = handles

    def row(self) -> tuple[int, Row]:
        """A handle never given before, and the row to write into, of unspecified content."""
        self._check_nothing_is_written()
        if not self._waiting or self._waiting[-1].is_full:
            self._waiting.append(self._empty_block())
        block = self._waiting[-1]
        self._being_written = self._handles
        self._handles += 1
        return self._being_written, block.rows[len(block.handles)]

    def fill(self, frames: Iterable[memoryview], kind: Kind, learning_rate: float, dimension: int) -> tuple[int, Row]:
        """As `row`, with a payload in it (see `write`). An error of the frames leaves it discarded."""
        handle, row = self.row()
        try:
            write(row.array_D, frames, kind, learning_rate, dimension)
        except BaseException:
            self.discard(handle)
            raise
        return handle, row

    def keep(self, handle: int, update: StagedUpdate) -> None:
        """The row last given is part of the round to come."""
        assert handle == self._being_written, f"row {self._being_written} is being written, not {handle}"
        self._being_written = None
        block = self._waiting[-1]
        if self._uploads is not None and block.uploaded_RD is not None:
            index = len(block.handles)
            self._uploads.copy(block.rows[index].vector_D, block.uploaded_RD[index])
        block.handles.append(handle)
        block.updates.append(update)

    @property
    def newest_D(self) -> Tensor:
        """The row last kept: [D] float32 in host memory, as it is until its round is given back."""
        block = self._waiting[-1]
        return block.rows[len(block.handles) - 1].vector_D

    def discard(self, handle: int) -> None:
        """The row last given will be written again by another update."""
        assert handle == self._being_written, f"row {self._being_written} is being written, not {handle}"
        self._being_written = None

    def take(self, handles: Sequence[int]) -> Round:
        """The rows of these handles as one matrix.

        Without a copy: they are exactly the rows kept in the oldest block, in order; a round that takes fewer than R
        takes all there are, and the next row starts a new block. Only with R = 1 they may be any. No handles: a round
        of no rows.
        """
        self._check_nothing_is_written()
        if not handles:
            return Round(torch.empty(0, self._row_numbers), ())
        if self._rows_per_block == 1:
            return self._gathered(handles)
        assert self._waiting, "nothing is staged"
        block = self._waiting.popleft()
        assert list(handles) == block.handles, f"asked for rows {list(handles)}, the oldest are {block.handles}"
        return self._lent([block], block.matrix_RD[: len(handles)], block.uploaded_RD)

    def _gathered(self, handles: Sequence[int]) -> Round:
        handle_set = set(handles)
        # The newest block may hold no row: what was written there last was discarded.
        taken = {handle: block for block in self._waiting for handle in block.handles if handle in handle_set}
        assert len(taken) == len(handles), f"asked for rows {list(handles)}, kept are {sorted(taken)} of them"
        self._waiting = deque(block for block in self._waiting if handle_set.isdisjoint(block.handles))
        blocks = [taken[handle] for handle in handles]
        matrices = [block.matrix_RD for block in blocks]
        return self._lent(blocks, matrices[0] if len(blocks) == 1 else torch.cat(matrices))

    def _lent(self, blocks: Sequence[_Block], matrix_KD: Tensor, uploaded_RD: Tensor | None = None) -> Round:
        # Blocks are free when the round is released, gathered or not: a reader of `newest_D` may still read their rows.
        updates = tuple(update for block in blocks for update in block.updates)
        give_back = partial(self._free.extend, blocks)
        uploads = self._uploads
        if uploads is None or uploaded_RD is None:
            return Round(matrix_KD, updates, give_back)
        copied = uploads.copied()

        def upload() -> Tensor:
            uploads.wait(copied)
            return uploaded_RD[: len(matrix_KD)]

        def give_back_both() -> None:
            uploads.give_back(uploaded_RD)
            give_back()

        return Round(matrix_KD, updates, give_back_both, upload)

    def _check_nothing_is_written(self) -> None:
        assert self._being_written is None, f"row {self._being_written} is neither kept nor discarded"

    def _empty_block(self) -> _Block:
        block = self._recycled() or self._new_block()
        if self._uploads is not None:
            block.uploaded_RD = self._uploads.matrix(self._rows_per_block, self._row_numbers)
        return block

    def _recycled(self) -> _Block | None:
        if not self._free:
            return None
        block = self._free.pop()
        block.empty()
        return block

    def _new_block(self) -> _Block:
        assert self._blocks < self._blocks_max, f"all {self._blocks_max} blocks are in use"
        self._blocks += 1
        return _Block(torch.empty(self._rows_per_block, self._row_numbers, dtype=torch.float32, pin_memory=self._pin))


def write(
    array_D: Vector, frames: Iterable[memoryview | bytes], kind: Kind, learning_rate: float, dimension: int
) -> None:
    """Fill a row with a payload, in one pass: of a delta, the first d numbers over its learning rate.

    frames: little-endian float32, each a multiple of 4 bytes, 4 D bytes together, as the receiver has checked; they may
    be decoded one at a time. learning_rate: eta_l, > 0. dimension: d. A quotient too large for float32 becomes an
    infinity, which `row_checks.defect` finds.
    Source: docs/methods/README.md#updates-and-learning-rates
    """
    divided = dimension if kind == "delta" else 0
    offset = 0
    for frame in frames:
        part = np.frombuffer(frame, dtype="<f4")
        end = offset + len(part)
        split = min(max(divided - offset, 0), len(part))
        if split:
            with np.errstate(all="ignore"):
                np.divide(part[:split], np.float32(learning_rate), out=array_D[offset : offset + split])
        if split < len(part):
            array_D[offset + split : end] = part[split:]
        offset = end
    assert offset == len(array_D), f"payload holds {offset} numbers, expected {len(array_D)}"


def pieces(
    frames: Iterable[memoryview | bytes], kind: Kind, learning_rate: float, dimension: int
) -> Iterator[memoryview]:
    """The bytes that `write` fills a row with, frame by frame; each piece is valid until the next one."""
    divided = dimension if kind == "delta" else 0
    offset = 0
    scratch: Vector = np.empty(0, dtype="<f4")
    for frame in frames:
        length = len(frame) // 4
        if offset < divided:
            scratch = scratch if len(scratch) == length else np.empty(length, dtype="<f4")
            write(scratch, (frame,), kind, learning_rate, divided - offset)
            yield scratch.data.cast("B")
        else:
            yield memoryview(frame)
        offset += length
