"""Reads rounds from the journal.

Legend: K updates of a round, in order of arrival; D numbers of a row.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from unstale import flat
from unstale.compensators import Made
from unstale.journal import checkpoints
from unstale.journal.database import Database
from unstale.journal.disk import DamagedError
from unstale.journal.rows import RoundRow, UpdateRow
from unstale.journal.segments import Segments
from unstale.journal.spill import StoredRows
from unstale.learner.updates import RoundUpdate


class RecordedRounds:
    """Reads the updates of rounds, and estimates of stale updates."""

    def __init__(self, database: Database, segments: Segments, compensations: Path, row_numbers: int) -> None:
        """compensations: folder of estimates. row_numbers: D."""
        self._database = database
        self._segments = segments
        self._compensations = compensations
        self._row_numbers = row_numbers

    def fill(self, update: UpdateRow, row_D: Tensor) -> None:
        """Read an accepted update into row_D: [D] float32 in host memory. Raises DamagedError."""
        assert update.location is not None, f"{update} was not accepted"
        self._segments.read(update.location, flat.to_bytes(row_D))

    def matrix(self, updates: Sequence[UpdateRow]) -> Tensor:
        """Rows of updates: [K, D] float32. Raises DamagedError."""
        matrix_KD = torch.empty(len(updates), self._row_numbers)
        for update, row_D in zip(updates, matrix_KD, strict=True):
            self.fill(update, row_D)
        return matrix_KD

    def stored(self, updates: Sequence[UpdateRow]) -> StoredRows:
        """The same, read by columns after verifying one row at a time. Raises DamagedError."""
        row_D = torch.empty(self._row_numbers)
        for update in updates:
            self.fill(update, row_D)
        locations = [update.location for update in updates if update.location is not None]
        return StoredRows(locations, self._row_numbers, self._segments.path)

    def made(self, row: RoundRow) -> Made | None:
        """Estimates that a round was compensated with; None without any. Raises DamagedError."""
        if row.compensation is None or not row.compensation.is_kept:
            return None
        path = checkpoints.path_of(self._compensations, row.version)
        try:
            state, _ = checkpoints.read(path)
        except DamagedError:
            raise damaged_estimates(row.version, path) from None
        made: Made = state["made"]
        return made

    def has_made(self, row: RoundRow) -> bool:
        """Whether the estimates of a round exist, or it had none."""
        is_kept = row.compensation is not None and row.compensation.is_kept
        return not is_kept or checkpoints.path_of(self._compensations, row.version).exists()

    def members(self, row: RoundRow) -> tuple[list[UpdateRow], tuple[RoundUpdate, ...]]:
        """The updates of a round, as stored and for the learner."""
        updates = list(self._database.updates_of(row.version))
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
