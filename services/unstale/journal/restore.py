"""Prepares a run directory that was put back from a copy for its next server."""

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
    """What a run directory holds after `restore`.

    Attributes:
        former_run_id: Id before, None where the run had none.
        run_id: Id from now on.
        version: Last version that was made.
        updates: Counts of the updates that are there.
        lost_events: Events that are known to be missing at the end.
        damaged_checkpoints: Messages about checkpoints that are not whole; an older one is whole.
        set_aside: Files with content that the database does not name, where they or copies of them are now.
    """

    former_run_id: str | None
    run_id: str
    version: int
    updates: Conservation
    lost_events: int
    damaged_checkpoints: tuple[str, ...]
    set_aside: tuple[Path, ...]


def restore(path: Path) -> Restored:
    """Check a run directory, set aside what is newer than its database, and give the run another id.

    Args:
        path: Of the directory; no server runs on it.

    Returns:
        What is there, and what is missing.

    Raises:
        UserError: It is no run directory, is in use, or damaged: then nothing in it has changed.
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
        # The next server cuts off what lies behind the last row that is named.
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
    """Have the next server resume under another run id: clients drop the tasks and updates that they hold.

    Args:
        directory: Opened for writing.
        database: Of the directory, whose end counts from now on.

    Returns:
        The new id.
    """
    run_id = secrets.token_hex(16)
    durability = database.meta(DURABILITY) or directory.settings.run.durability
    copy_detection.forget_uploads(directory)
    database.end_here()
    ended = str(database.last_seq())
    copy_detection.begin(
        directory,
        database,
        {BOOT: boot(), RUN_ID: run_id, DURABILITY: durability, ENDED: ended},
    )
    database.store_totals()
    return run_id


def _check(directory: RunDirectory, database: Database, segments: Segments) -> tuple[str, ...]:
    """Read all that the next server needs; messages about checkpoints that it will pass over. Raises DamagedError."""
    database.check()
    damaged: list[DamagedError] = []
    start = 0
    for row in database.checkpoints():
        try:
            checkpoints.read_at(directory.checkpoints / row.file, row.seq)
        except DamagedError as error:
            damaged.append(error)
        else:
            start = row.seq
            break
    if damaged and start == 0 and not directory.settings.run.keep_updates:
        raise damaged[-1]
    for _ in database.events_after(start):
        pass
    for update in database.updates_after(0):
        if update.place is not None:
            segments.read(update.place, memoryview(bytearray(update.place.size_bytes)))
    return tuple(str(error) for error in damaged)
