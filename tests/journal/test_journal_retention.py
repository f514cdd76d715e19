"""Deletion removes only data of older checkpoints, whatever happens between forgetting and deleting."""

from pathlib import Path

import pytest

from support.journal import accepted, event, round_of
from unstale.config.settings import RunSettings, Settings
from unstale.journal.journal import Journal
from unstale.journal.rundir import RunDirectory

ROW = memoryview(bytes(100))


class Life:
    """A journal whose segments hold one row each. Every version is a round of one update, and a checkpoint."""

    def __init__(self, folder: Path, durability: str, *, keep_updates: bool = False) -> None:
        run = RunSettings(directory=str(folder), durability=durability, keep_updates=keep_updates)
        directory = RunDirectory.open(folder, Settings(run=run))
        self.now_s = 0.0
        self.journal = Journal(directory, run, clock=lambda: self.now_s)
        self.journal.segments._segment_bytes = 1
        self.version = 0
        self.folder = folder

    def make_version(self, *, saved: bool) -> None:
        journal = self.journal
        self.version += 1
        handle = self.version
        place = journal.append(ROW, handle)
        journal.seq += 2
        journal.batch.events += [event(journal.seq - 1), event(journal.seq)]
        journal.batch.updates.append(accepted(journal.seq - 1, handle, place))
        journal.keep_made(self.version, {})
        journal.batch.rounds.append(round_of(self.version, handle))
        journal.commit()
        if saved:
            file, size_bytes = journal.write_checkpoint(self.version, journal.seq, {}, {})
            journal.saved(self.version, journal.seq, file, size_bytes, self.now_s)

    def wait_for_syncs(self) -> None:
        """Let the time between two syncs pass, as the server protocol does, and the one that is under way end."""
        self.now_s += self.journal.sync_in_s or 0.0
        self.journal.commit()
        syncing = self.journal.segments._syncing
        if syncing is not None:
            syncing.result()

    def segments(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.folder / "segments").iterdir())

    def compensations(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.folder / "compensations").iterdir())

    def checkpoints(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.folder / "checkpoints").iterdir())


EACH = pytest.mark.parametrize("durability", ["full", "normal"])


@EACH
def test_files_that_the_database_names_are_not_deleted(tmp_path: Path, durability: str) -> None:
    life = Life(tmp_path / "run", durability)
    for _ in range(12):
        life.make_version(saved=True)
        life.wait_for_syncs()
        named = {row.location.segment for row in life.journal.database.updates_after(0) if row.location is not None}
        assert named <= set(life.segments())
        files = {int(row.file.partition(".")[0]) for row in life.journal.database.checkpoints()}
        assert files <= set(life.checkpoints())
        assert life.version in life.segments()
    # Two checkpoints are kept and what the older of them does not hold; what is synced one and two turns later goes.
    assert len(life.segments()) <= 6
    assert len(life.checkpoints()) <= 5
    life.journal.close()


def test_nothing_is_deleted_before_its_replacement_is_on_the_disk(tmp_path: Path) -> None:
    life = Life(tmp_path / "run", "normal")
    for _ in range(6):
        life.make_version(saved=True)  # no time goes by: one sync has begun, and that is all
    assert life.checkpoints() == [1, 2, 3, 4, 5, 6]
    assert life.segments() == [1, 2, 3, 4, 5, 6]
    assert life.compensations() == [1, 2, 3, 4, 5, 6]
    life.journal.close()


@EACH
def test_a_journal_that_is_closed_has_deleted_what_it_was_about_to(tmp_path: Path, durability: str) -> None:
    life = Life(tmp_path / "run", durability)
    for _ in range(6):
        life.make_version(saved=True)
    life.journal.commit()
    life.journal.close()
    assert life.checkpoints() == [5, 6]
    assert life.segments() == life.compensations() == [6]


@EACH
def test_one_checkpoint_covers_nothing_alone(tmp_path: Path, durability: str) -> None:
    life = Life(tmp_path / "run", durability)
    for version in range(1, 5):
        life.make_version(saved=version == 4)
    life.journal.commit()
    life.journal.close()
    assert life.checkpoints() == [4]
    assert life.segments() == life.compensations() == [1, 2, 3, 4]


def test_a_run_that_stores_its_updates_stores_their_compensations(tmp_path: Path) -> None:
    life = Life(tmp_path / "run", "full", keep_updates=True)
    for _ in range(4):
        life.make_version(saved=True)
    life.journal.commit()
    life.journal.close()
    assert life.checkpoints() == [3, 4]
    assert life.segments() == life.compensations() == [1, 2, 3, 4]
