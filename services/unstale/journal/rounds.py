"""Rounds as they were, read from the journal.

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
from unstale.learner.updates import RoundUpdate, StagedUpdate


class RecordedRounds:
    """Reads rows and what is known about them. compensations: folder of what was made of them. row_numbers: D."""

    def __init__(self, database: Database, segments: Segments, compensations: Path, row_numbers: int) -> None:
        self._database = database
        self._segments = segments
        self._compensations = compensations
        self._row_numbers = row_numbers

    def fill(self, update: UpdateRow, row_D: Tensor) -> None:
        """Write an accepted update's row. row_D: [D] float32 in host memory. Raises UserError where it is damaged."""
        assert update.place is not None, f"{update} was not accepted"
        self._segments.read(update.place, flat.to_bytes(row_D))

    def matrix(self, updates: Sequence[UpdateRow]) -> Tensor:
        """[K, D] float32."""
        matrix_KD = torch.empty(len(updates), self._row_numbers)
        for update, row_D in zip(updates, matrix_KD, strict=True):
            self.fill(update, row_D)
        return matrix_KD

    def stored(self, updates: Sequence[UpdateRow]) -> StoredRows:
        """The same, to be read in parts: one row is in memory at a time. Raises UserError where one is damaged."""
        row_D = torch.empty(self._row_numbers)
        for update in updates:
            self.fill(update, row_D)
        places = [update.place for update in updates if update.place is not None]
        return StoredRows(places, self._row_numbers, self._segments.path)

    def made(self, row: RoundRow) -> Made | None:
        """What a round was compensated with; None where nothing is kept of that. Raises UserError where it is
        damaged."""
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
        """Whether what a round was compensated with is still there, or nothing was kept."""
        is_kept = row.compensation is not None and row.compensation.is_kept
        return not is_kept or checkpoints.path_of(self._compensations, row.version).exists()

    def members(self, row: RoundRow) -> tuple[list[UpdateRow], tuple[RoundUpdate, ...]]:
        """The updates of a round, and what the learner is told of them."""
        updates = list(self._database.updates_of(row.version))
        told = tuple(
            staged(update).in_round(
                task_id=update.task_id, base_version=update.base_version, staleness=member.staleness
            )
            for update, member in zip(updates, row.members, strict=True)
        )
        return updates, told


def damaged_estimates(version: int, path: Path) -> DamagedError:
    """The error for a file of what a version was compensated with."""
    return DamagedError(
        f"what version {version} was compensated with, {path}, is missing or damaged; put it back from a copy"
    )


def staged(update: UpdateRow) -> StagedUpdate:
    """What was kept beside the row of an update."""
    return StagedUpdate(
        client_id=update.client_id,
        num_examples=update.num_examples,
        batch_examples=update.batch_examples,
        loss=update.loss,
        local_rate=update.local_rate,
    )
