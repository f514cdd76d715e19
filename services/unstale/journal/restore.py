"""Prepares a run directory that was put back from a copy for the next server."""

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from unstale.journal import checkpoints, copy_detection
from unstale.journal.crash_recovery import DURABILITY, ENDED, RUN_ID, drop_lost_events
from unstale.journal.database import BOOT, Conservation, Database
from unstale.journal.disk import DamagedError, boot
from unstale.journal.rundir import RunDirectory, put_back_settings
from unstale.journal.segments import Segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Content of a run directory after `restore`.

    Attributes:
        former_run_id: None where the run had none.
        version: Last version.
        updates: Counts of the updates in the database.
        lost_events: Number of events that are known to be missing at the end.
        damaged_checkpoints: Error messages; an older checkpoint is intact.
        set_aside: New paths of files, or copies of files, with data that is not in the database.
    """

    former_run_id: str | None
    run_id: str
    version: int
    updates: Conservation
    lost_events: int
    damaged_checkpoints: tuple[str, ...]
    set_aside: tuple[Path, ...]


def restore(path: Path) -> Restored:
    """Check a run directory, set aside files that are newer than its database, and give the run another id.

    Raises UserError where it is not a run directory, is in use or is damaged; nothing has changed then.
    """
    with ExitStack() as stack:
        put_back_settings(path)
        directory = RunDirectory.take(path)
        stack.callback(directory.close)
        database = Database(directory.database, takes_loss=True)
        stack.callback(database.close)
        segments = Segments(directory.segments)
        before = database.last_seq() + database.missing
        former = database.meta(RUN_ID) or None
        if database.machine_restarted:
            drop_lost_events(database, segments, directory.settings.run.sync_every_s)
        damaged = _check(directory, database, segments)
        ends = database.segment_ends()
        above = segments.above(ends)
        aside = [*copy_detection.newer_checkpoints(directory, database), *above]
        # The next server truncates segments after the last row that the database names.
        cut = sorted({*segments.beyond(ends)} - {*above})
        copied = cut if database.missing or database.newest_is_missing else []
        moved = copy_detection.set_aside(directory, aside, copied)
        run_id = give_new_id(directory, database)
        return Restored(
            former_run_id=former,
            run_id=run_id,
            version=copy_detection.last_version(database),
            updates=database.conservation(),
            lost_events=before - database.last_seq(),
            damaged_checkpoints=damaged,
            set_aside=tuple(moved),
        )


def give_new_id(directory: RunDirectory, database: Database) -> str:
    """Give the run another id, so that clients drop their tasks and updates; returns the id."""
    run_id = secrets.token_hex(16)
    durability = database.meta(DURABILITY) or directory.settings.run.durability
    copy_detection.forget_uploads(directory)
    database.end_here()
    ended = str(database.last_seq())
    copy_detection.begin(directory, database, {BOOT: boot(), RUN_ID: run_id, DURABILITY: durability, ENDED: ended})
    database.store_totals()
    return run_id


def _check(directory: RunDirectory, database: Database, segments: Segments) -> tuple[str, ...]:
    """Read all that the next server needs; returns messages about damaged checkpoints. Raises DamagedError."""
    database.check()
    start, damaged = _newest_intact(directory, database)
    if damaged and start == 0 and not directory.settings.run.keep_updates:
        raise damaged[-1]
    for _ in database.events_after(start):
        pass
    for update in database.updates_after(0):
        if update.location is not None:
            segments.read(update.location, memoryview(bytearray(update.location.size_bytes)))
    return tuple(str(error) for error in damaged)


def _newest_intact(directory: RunDirectory, database: Database) -> tuple[int, list[DamagedError]]:
    """Event that the newest intact checkpoint covers, 0 without one; and errors of newer ones."""
    damaged: list[DamagedError] = []
    for row in database.checkpoints():
        try:
            _, seq = checkpoints.read_at(directory.checkpoints / row.file, row.seq, database.last_seq())
        except DamagedError as error:
            damaged.append(error)
        else:
            return seq, damaged
    return 0, damaged
