"""Prepares a run directory that was put back from a copy for the next server."""

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from unstale.journal import checkpoints, resumption
from unstale.journal.database import BOOT, Conservation, Database
from unstale.journal.disk import DamagedError, boot
from unstale.journal.resumption import DURABILITY, ENDED, RUN_ID
from unstale.journal.rundir import RunDirectory, restore_config
from unstale.journal.segments import Segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Content of a run directory after `restore`."""

    former_run_id: str | None
    run_id: str
    version: int  # the last one
    updates: Conservation
    lost_events: int  # known to be missing at the end
    damaged_checkpoints: tuple[str, ...]  # error messages; an older checkpoint is intact
    set_aside: tuple[Path, ...]  # new paths of files, or copies of files, with data that is not in the database


def restore(path: Path) -> Restored:
    """Check a run directory, set aside files that are newer than its database, and give the run another id.

    Raises UserError where it is not a run directory, is in use or is damaged; nothing has changed then.
    """
    with ExitStack() as stack:
        restore_config(path)
        directory = RunDirectory.take(path)
        stack.callback(directory.close)
        database = Database(directory.database, takes_loss=True)
        stack.callback(database.close)
        segments = Segments(directory.segments)
        before = database.last_seq() + database.missing
        former = database.meta(RUN_ID) or None
        if database.machine_restarted:
            resumption.drop_lost_events(database, segments, directory.settings.run.sync_every_s)
        damaged = _check(directory, database, segments)
        ends = database.segment_ends()
        above = segments.above(ends)
        aside = [*resumption.newer_checkpoints(directory, database), *above]
        # The next server truncates segments after the last row that the database names.
        cut = sorted({*segments.beyond(ends)} - {*above})
        copied = cut if database.missing or database.newest_is_missing else []
        moved = resumption.set_aside(directory, aside, copied)
        run_id = give_new_id(directory, database)
        return Restored(
            former_run_id=former,
            run_id=run_id,
            version=resumption.last_version(database),
            updates=database.conservation(),
            lost_events=before - database.last_seq(),
            damaged_checkpoints=damaged,
            set_aside=tuple(moved),
        )


def give_new_id(directory: RunDirectory, database: Database) -> str:
    """Give the run another id, so that clients drop their tasks and updates; returns the id."""
    run_id = secrets.token_hex(16)
    durability = database.meta(DURABILITY) or directory.settings.run.durability
    resumption.forget_uploads(directory)
    database.end_here()
    ended = str(database.last_seq())
    resumption.begin(directory, database, {BOOT: boot(), RUN_ID: run_id, DURABILITY: durability, ENDED: ended})
    database.store_totals()
    return run_id


def _check(directory: RunDirectory, database: Database, segments: Segments) -> tuple[str, ...]:
    """Read all that the next server needs; returns messages about damaged checkpoints. Raises DamagedError."""
    database.check()
    start = 0  # event that the newest intact checkpoint covers
    damaged: list[DamagedError] = []
    for row in database.checkpoints():
        try:
            _, start = checkpoints.read_at(directory.checkpoints / row.file, row.seq, database.last_seq())
            break
        except DamagedError as error:
            damaged.append(error)
    if damaged and start == 0 and not directory.settings.run.keep_updates:
        raise damaged[-1]
    for _ in database.events_after(start):
        pass
    for update in database.updates_after(0):
        if update.location is not None:
            segments.check(update.location)
    return tuple(str(error) for error in damaged)
