"""Prepares a run directory that was restored from a backup for the next server."""

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from unstale.journal import checkpoints, resumption
from unstale.journal.database import BOOT, Conservation, Database
from unstale.journal.disk import boot
from unstale.journal.resumption import DURABILITY, ENDED, ROLLED_BACK, RUN_ID
from unstale.journal.rundir import RunDirectory, restore_config
from unstale.journal.segments import Segments
from unstale_client.disk import DamagedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Content of a run directory after `restore`. Fields are keys of `unstale restore --json`."""

    former_run_id: str | None
    run_id: str
    version: int  # newest version
    updates: Conservation
    lost_events: int  # known to be missing after the last stored event
    damaged_checkpoints: tuple[str, ...]  # error messages; the run resumes without them
    set_aside: tuple[Path, ...]  # paths of moved or copied files, whose data is not in the database


def restore(path: Path) -> Restored:
    """Check a run directory, set aside files that are newer than its database, and give the run another id.

    Raises UserError if it is not a run directory, in use or damaged: before more than restoring `config.yaml` and, as
    at any start, deleting events that a power failure took.
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
        newer_segments = segments.above(ends)
        newer = [*resumption.newer_checkpoints(directory, database), *newer_segments]
        # The next server truncates the last segment after its last row in the database, so a copy is set aside.
        end_is_lost = database.missing > 0 or database.newest_is_missing
        copied = sorted({*segments.beyond(ends)} - {*newer_segments}) if end_is_lost else []
        set_aside = resumption.set_aside(directory, newer, copied)
        run_id = give_new_id(directory, database)
        return Restored(
            former_run_id=former,
            run_id=run_id,
            version=resumption.last_version(database),
            updates=database.conservation(),
            lost_events=before - database.last_seq(),
            damaged_checkpoints=damaged,
            set_aside=tuple(set_aside),
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
    """Read all data that the next server needs; returns messages about damaged checkpoints. Raises DamagedError."""
    database.check()
    start, damaged = _newest_checkpoint(directory, database)
    for _ in database.events_after(start):
        pass
    for update in database.updates_after(0):
        if update.location is not None:
            segments.check(update.location)
    return tuple(str(error) for error in damaged)


def _newest_checkpoint(directory: RunDirectory, database: Database) -> tuple[int, list[DamagedError]]:
    """The last event that the newest intact checkpoint covers, 0 without one, and newer checkpoints that are damaged.

    Raises DamagedError if the run cannot be resumed without them.
    """
    damaged: list[DamagedError] = []
    first = int(database.meta(ROLLED_BACK) or 0)  # earlier events are not replayed
    for row in database.checkpoints():
        if row.version < first:
            break
        try:
            return checkpoints.read_at(directory.checkpoints / row.file, row.seq, database.last_seq())[1], damaged
        except DamagedError as error:
            damaged.append(error)
    if damaged and (first or not directory.settings.run.keep_updates):
        raise damaged[-1]  # the events and updates before the checkpoints are not all stored
    return 0, damaged
