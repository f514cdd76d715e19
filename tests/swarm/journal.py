"""The server's disk and its kills: the real journal in a folder in memory, which a killed server leaves as it is.

A kill is a SIGKILL: data passed to the operating system stays, the rest is lost.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from unstale.config.settings import RunSettings, Settings
from unstale.journal.journal import CHECKPOINTS_KEPT, Journal
from unstale.journal.rows import Location
from unstale.journal.rundir import CHECKPOINTS, RunDirectory
from unstale.seeds import Generator

MEMORY = Path("/dev/shm")
GOOD = 0.7  # share of disks that lose nothing

PLACES = (
    "between turns",
    "heard",  # a message is processed, and nothing is settled
    "row written",
    "before the commit",
    "in the commit",  # the database has it, and the file beside it does not yet
    "after the commit",
    "letting go",  # of files that only older checkpoints need
    "before a word",  # of messages that follow from committed events
    "before a checkpoint",
    "after a checkpoint",  # it is complete, and its server has not recorded it yet
)
"""Places where a server can be killed."""

RARE_PLACES = frozenset({"letting go", "before a checkpoint", "after a checkpoint"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How a run is stored. segment_bytes: of a segment. spills: rows wait on disk. Rates: events per second
    of the server. kill: it dies. stop: the operator ends and restarts it. fill: its disk is full.
    """

    durability: Literal["full", "normal"]
    checkpoint_every: int
    payload_bytes_max: int
    keep_updates: bool
    segment_bytes: int
    spills: bool
    kill: float
    stop: float
    fill: float

    @property
    def settings(self) -> Settings:
        """The settings of the run that its folder needs."""
        return Settings(
            run=RunSettings(
                durability=self.durability,
                checkpoint_every=self.checkpoint_every,
                payload_bytes_max=self.payload_bytes_max,
                keep_updates=self.keep_updates,
                free_bytes_min=0,
            )
        )


class Killed(BaseException):
    """The server dies here."""


class Doom:
    """Where the server dies. place: None for nowhere."""

    def __init__(self) -> None:
        self._place: str | None = None
        self._passes = 0

    def strike(self, place: str, passes: int) -> None:
        """Die there, after passing it so many times."""
        self._place, self._passes = place, passes

    def spare(self) -> None:
        self._place = None

    def reach(self, place: str) -> None:
        """The server is there now."""
        if place == self._place:
            self._passes -= 1
            if self._passes < 0:
                self._place = None
                raise Killed(place)


class PlayedJournal(Journal):
    """The real journal. committed: called after every commit. is_full: no space for updates."""

    def __init__(
        self, path: Path, keeping: Keeping, *, clock: Callable[[], float], doom: Doom, committed: Callable[[], None]
    ) -> None:
        settings = keeping.settings
        super().__init__(RunDirectory.open(path, settings), settings.run, clock=clock)
        self.segments._segment_bytes = keeping.segment_bytes
        self.is_full = False
        self.is_closed = False
        self._doom = doom
        self._committed = committed
        self.segments.sync_soon = self._sync_at_once  # type: ignore[method-assign]
        self._set_newest = self.database._sequence_file.set
        self.database._sequence_file.set = self._stored  # type: ignore[method-assign]
        for owner, names in (
            (self.database, ("forget_checkpoints", "forget_events", "forget_segments")),
            (self.segments, ("retire",)),
        ):
            for name in names:
                setattr(owner, name, partial(self._delete_old, getattr(owner, name)))

    def has_room(self, size_bytes: int) -> bool:
        return not self.is_full and super().has_room(size_bytes)

    def append(self, row: memoryview, handle: int) -> Location:
        place = super().append(row, handle)
        self._doom.reach("row written")
        return place

    def _stored(self, number: int) -> None:
        self._committed()
        self._doom.reach("in the commit")
        self._set_newest(number)

    def _sync_at_once(self, then: Path | None = None) -> bool:
        """Background work would make each simulation different."""
        self.segments.sync()
        return True

    def _delete_old(self, forget: Callable[..., object], *what: object) -> None:
        self._doom.reach("letting go")
        forget(*what)

    def commit(self, *, durable: bool = False) -> None:
        changes = bool(self.batch)
        if changes:
            self._doom.reach("before the commit")
        super().commit(durable=durable)
        self._committed()
        if changes:
            self._doom.reach("after the commit")

    def write_checkpoint(
        self, version: int, seq: int, learner: Mapping[str, Any], coordinator: Mapping[str, Any]
    ) -> tuple[str, int]:
        self._doom.reach("before a checkpoint")
        written = super().write_checkpoint(version, seq, learner, coordinator)
        self._doom.reach("after a checkpoint")
        return written

    def close(self) -> None:
        if not self.is_closed:  # its server can be killed while it closes
            self.is_closed = True
            super().close()


class Disk:
    """Folders of one seed. path: of its current run. rng: draws whether the newest checkpoint loses a bit."""

    def __init__(self, rng: Generator) -> None:
        self._rng = rng
        self._is_good = rng.random() < GOOD
        in_memory = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="unstale-swarm-", dir=in_memory))
        self._lives = 0

    @property
    def path(self) -> Path:
        return self._folder / f"{self._lives}"

    def outlive(self, journal: PlayedJournal) -> None:
        """The owner of the journal was killed: the next process starts with the current files."""
        before, snapshot = self.path, self._folder / "snapshot"
        self._lives += 1
        shutil.copytree(before, snapshot)
        kept = [] if journal.is_closed else [row.file for row in journal.database.checkpoints()]
        journal.close()  # must not change the files of the dead one: into the same files, whose inodes stay
        for path in [path for path in before.rglob("*") if path.is_file()]:
            if not (snapshot / path.relative_to(before)).exists():
                path.unlink()
        shutil.copytree(snapshot, before, dirs_exist_ok=True)
        shutil.rmtree(snapshot)
        before.rename(self.path)
        self.is_damaged = not self._is_good and len(kept) >= CHECKPOINTS_KEPT
        if self.is_damaged:  # once: the previous one is the fallback
            self._is_good = True
            self._damage(self.path / CHECKPOINTS / kept[0])

    def _damage(self, path: Path) -> None:
        """Flip one bit."""
        content = bytearray(path.read_bytes())
        content[int(self._rng.integers(len(content)))] ^= 1 << int(self._rng.integers(8))
        path.write_bytes(content)

    def delete(self) -> None:
        shutil.rmtree(self._folder)
