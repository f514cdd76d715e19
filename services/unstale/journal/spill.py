"""Staging that keeps pending rows on disk, for rounds that do not fit in memory.

Only for policies that work column by column. Legend: K updates of the round, in order of arrival; D numbers of a row.
"""

import os
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from unstale import flat
from unstale.journal.disk import DamagedError, open_file, read_all, user_errors
from unstale.journal.rows import Location
from unstale.learner.updates import Round, Row, StagedUpdate, Staging

FLOAT_BYTES = 4


class Spill(Staging):
    """Holds the row that is being written in memory; the journal has stored the others."""

    def __init__(
        self, row_numbers: int, *, locations: MutableMapping[int, Location], path_of: Callable[[int], Path]
    ) -> None:
        """places: by handle; the journal adds places and a round removes them. path_of: the file of a segment."""
        super().__init__(row_numbers, 1, blocks_max=2)
        self._row: Row | None = None
        self._kept: dict[int, StagedUpdate] = {}
        self._locations = locations
        self._path_of = path_of

    @override
    def row(self) -> tuple[int, Row]:
        assert self._being_written is None, f"row {self._being_written} is neither kept nor discarded"
        self._being_written = self._handles
        self._handles += 1
        self._row = Row.of(torch.empty(self._row_numbers)) if self._row is None else self._row
        return self._being_written, self._row

    @override
    def keep(self, handle: int, update: StagedUpdate) -> None:
        self.discard(handle)
        self._row = None
        self._kept[handle] = update

    @override
    def take(self, handles: Sequence[int]) -> Round:
        assert self._being_written is None, f"row {self._being_written} is neither kept nor discarded"
        updates = tuple(self._kept.pop(handle) for handle in handles)
        rows = StoredRows([self._locations.pop(handle) for handle in handles], self._row_numbers, self._path_of)
        return Round(rows, updates, rows.close)


class StoredRows:
    """The rows of a round, read by columns. shape: [K, D]."""

    def __init__(self, locations: Sequence[Location], row_numbers: int, path_of: Callable[[int], Path]) -> None:
        self.shape = (len(locations), row_numbers)
        self._locations = locations
        self._path_of = path_of
        self._files: dict[int, int] = {}

    def columns(self, start: int, end: int) -> Tensor:
        """Columns start to end of all rows: [K, end - start] float32. Raises UserError for a damaged file."""
        part_Kc = torch.empty(len(self._locations), end - start)
        for row_c, location in zip(part_Kc, self._locations, strict=True):
            self._read(location, start, row_c)
        return part_Kc

    def close(self) -> None:
        """Close the files."""
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
