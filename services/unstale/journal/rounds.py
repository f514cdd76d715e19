"""Reads rounds from the journal: of a run that is computed again, and of one whose pending rows are on disk.

Legend: K updates of a round, in order of arrival; D numbers of a row.
"""

import os
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from unstale import flat
from unstale.compensators import Made
from unstale.journal import checkpoints
from unstale.journal.database import Database
from unstale.journal.disk import read_all
from unstale.journal.rows import Location, RoundRow, UpdateRow
from unstale.journal.segments import SEGMENT_BYTES, Segments
from unstale.learner.updates import Round, RoundUpdate, Row, StagedUpdate, Staging, pieces
from unstale.training.local import Kind
from unstale_client.disk import DamagedError, open_file, user_errors

FLOAT_BYTES = 4
MAPPED_BYTES = SEGMENT_BYTES  # rows from this size on, which have a segment of their own, take no memory of the process


class StoredRows:
    """The rows of a round, read by columns. shape: [K, D]."""

    def __init__(self, locations: Sequence[Location], row_numbers: int, path_of: Callable[[int], Path]) -> None:
        self.shape = (len(locations), row_numbers)
        self._locations = locations
        self._path_of = path_of
        self._files: dict[int, int] = {}
        self._memory = torch.empty(0)  # reused: page faults of fresh memory cost as much as the copy

    def columns(self, start: int, end: int) -> Tensor:
        """Columns start to end of all rows: [K, end - start] float32, valid until the next call.

        Raises UserError for a damaged file.
        """
        numbers = len(self._locations) * (end - start)
        if len(self._memory) < numbers:
            self._memory = torch.empty(numbers)
        part_Kc = self._memory[:numbers].view(len(self._locations), end - start)
        for row_c, location in zip(part_Kc, self._locations, strict=True):
            self._read(location, start, row_c)
        return part_Kc

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _read(self, location: Location, start: int, row_c: Tensor) -> None:
        path = self._path_of(location.segment)
        into = flat.to_bytes(row_c)
        with user_errors("read", path):
            if location.segment not in self._files:
                self._files[location.segment] = open_file(path, os.O_RDONLY)
            filled = read_all(self._files[location.segment], into, location.offset + FLOAT_BYTES * start)
        if filled < len(into):
            raise DamagedError(f"{path} is too short; put it back from a copy, or start a new run with --run")


@dataclass(frozen=True, slots=True)
class RecordedRounds:
    """Reads the updates of rounds, and estimates of stale updates."""

    database: Database
    segments: Segments
    compensations: Path  # folder of estimates
    row_numbers: int  # D

    def fill(self, update: UpdateRow, row_D: Tensor) -> None:
        """Read an accepted update into row_D: [D] float32 in host memory. Raises DamagedError."""
        assert update.location is not None, f"{update} was not accepted"
        self.segments.read(update.location, flat.to_bytes(row_D))

    def matrix(self, updates: Sequence[UpdateRow]) -> Tensor:
        """Rows of updates: [K, D] float32. Raises DamagedError."""
        matrix_KD = torch.empty(len(updates), self.row_numbers)
        for update, row_D in zip(updates, matrix_KD, strict=True):
            self.fill(update, row_D)
        return matrix_KD

    def stored(self, updates: Sequence[UpdateRow]) -> StoredRows:
        """The same, read by columns after verifying one row at a time. Raises DamagedError."""
        row_D = torch.empty(self.row_numbers)
        for update in updates:
            self.fill(update, row_D)
        locations = [update.location for update in updates if update.location is not None]
        return StoredRows(locations, self.row_numbers, self.segments.path)

    def made(self, row: RoundRow) -> Made | None:
        """Estimates that a round was compensated with; None without any. Raises DamagedError."""
        if row.compensation is None or not row.compensation.is_kept:
            return None
        path = checkpoints.path_of(self.compensations, row.version)
        try:
            state, _ = checkpoints.read(path)
        except DamagedError:
            raise damaged_estimates(row.version, path) from None
        made: Made = state["made"]
        return made

    def has_made(self, row: RoundRow) -> bool:
        """Whether the estimates of a round exist, or it had none."""
        is_kept = row.compensation is not None and row.compensation.is_kept
        return not is_kept or checkpoints.path_of(self.compensations, row.version).exists()

    def members(self, row: RoundRow) -> tuple[list[UpdateRow], tuple[RoundUpdate, ...]]:
        """The updates of a round, as stored and for the learner."""
        updates = list(self.database.updates_of(row.version))
        members = tuple(
            update.staged.in_round(member.staleness) for update, member in zip(updates, row.members, strict=True)
        )
        return updates, members


def damaged_estimates(version: int, path: Path) -> DamagedError:
    """The error for a damaged file of estimates."""
    return DamagedError(
        f"{path}, the estimates with which version {version} was compensated, is missing or damaged; put it back from "
        "a copy"
    )


class Spill(Staging):
    """Staging that keeps pending rows on disk, for rounds that do not fit in memory: the journal has stored them.

    Only for policies that work column by column. The row that is being written is in memory, or, where it is large, in
    the page cache.
    """

    def __init__(self, row_numbers: int, *, locations: MutableMapping[int, Location], segments: Segments) -> None:
        """locations: by handle; the journal adds them and a round removes them."""
        super().__init__(row_numbers, 1, blocks_max=2)
        self._segments = segments
        self._row: Row | None = None
        self._kept: dict[int, StagedUpdate] = {}
        self._locations = locations

    @override
    def row(self) -> tuple[int, Row]:
        assert self._being_written is None, f"row {self._being_written} is neither kept nor discarded"
        self._being_written = self._handles
        self._handles += 1
        self._row = Row.of(torch.empty(self._row_numbers)) if self._row is None else self._row
        return self._being_written, self._row

    @override
    def fill(self, frames: Iterable[memoryview], kind: Kind, learning_rate: float, dimension: int) -> tuple[int, Row]:
        """As inherited; a large row is written to its segment piece by piece, and mapped from there."""
        size_bytes = FLOAT_BYTES * self._row_numbers
        if size_bytes < MAPPED_BYTES:
            return super().fill(frames, kind, learning_rate, dimension)
        assert self._being_written is None, f"row {self._being_written} is neither kept nor discarded"
        data = self._segments.fill(pieces(frames, kind, learning_rate, dimension), size_bytes)
        self._being_written = self._handles
        self._handles += 1
        vector_D = torch.frombuffer(data, dtype=torch.float32)
        return self._being_written, Row(vector_D, vector_D.numpy(), data)

    @override
    def keep(self, handle: int, update: StagedUpdate) -> None:
        self.discard(handle)
        self._row = None
        self._kept[handle] = update

    @override
    def take(self, handles: Sequence[int]) -> Round:
        assert self._being_written is None, f"row {self._being_written} is neither kept nor discarded"
        updates = tuple(self._kept.pop(handle) for handle in handles)
        rows = StoredRows([self._locations.pop(handle) for handle in handles], self._row_numbers, self._segments.path)
        return Round(rows, updates, rows.close)
