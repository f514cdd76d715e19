"""Whether and from where a run resumes: facts in `run.db`, files that a copy or a crash left, and lost events."""

import json
import logging
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from unstale.errors import UserError
from unstale.journal import checkpoints
from unstale.journal.database import BOOT, MARKS, SYNCED, Database
from unstale.journal.rundir import SET_ASIDE, RunDirectory
from unstale.journal.segments import Segments
from unstale_client.disk import DamagedError, sync_folder, user_errors

log = logging.getLogger("unstale.journal")

# Keys of facts.
RUN_ID = "run_id"
DURABILITY = "durability"  # of the last server
ENDED = "ended"  # last seq of a server that shut down; "" after a crash
GIVEN_UP = "given_up"  # reason why the last server gave up the run; "" or missing if it did not
EXCLUDED = "excluded"  # JSON list of ids of excluded clients
ROLLED_BACK = "rolled_back"  # version of the last rollback


# --- the last server gave up ---


def give_up(database: Database, path: Path, why: str) -> str:
    """Store the reason why the run is given up; returns the error message for it. path: of the run directory."""
    database.set_meta({GIVEN_UP: why})
    return f"{why}; {_remedy(database, path)}"


def check_not_given_up(database: Database, path: Path) -> None:
    """Raise UserError if the last server gave up the run. path: of the run directory."""
    why = database.meta(GIVEN_UP)
    if why:
        raise UserError(f"the run in {path} was given up: {why}; {_remedy(database, path)}")


def _remedy(database: Database, path: Path) -> str:
    versions = possible_versions(database, last_version(database))
    return (
        f"`unstale rollback {path} --to VERSION` resumes it from an earlier version ({versions}), or start a new run "
        "with --run"
    )


def excluded(database: Database) -> frozenset[int]:
    """Ids of excluded clients."""
    return frozenset(json.loads(database.meta(EXCLUDED) or "[]"))


# --- versions ---


def last_version(database: Database) -> int:
    """The last version in a database, 0 without any; from a checkpoint where its round was deleted."""
    saved = [row.version for row in database.checkpoints()[:1]]
    return max([database.last_version(), *saved])


def first_computable(database: Database) -> int:
    """First version > 0 from which every version can be computed from a checkpoint and events.

    Events before a rollback are not replayed: they do not contain the updates that it dropped.
    """
    rolled_back = database.meta(ROLLED_BACK)
    if not rolled_back and database.is_complete():
        return 1
    after = int(rolled_back or 0)
    bases = [row.version for row in database.checkpoints() if row.version >= after]
    return max(1, min(bases)) if bases else last_version(database) + 1


def possible_versions(database: Database, last: int) -> str:
    """Versions that a run can be rolled back to, as text. last: the newest version."""
    first = first_computable(database)
    if first == 1 <= last:
        return f"0 to {last}"
    saved = sorted(row.version for row in database.checkpoints() if 0 < row.version < first)
    later = [f"{first} to {last}"] if first < last else [f"{first}"] if first == last else []
    words = ["0", *map(str, saved), *later]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


# --- events that a power failure took ---


def drop_lost_events(database: Database, segments: Segments, sync_every_s: float) -> None:
    """Delete events from the first with a lost row, and give the run another id, so that clients drop their tasks.

    Durability `normal` allows the loss. Does nothing if the server shut down or had synced everything. sync_every_s: of
    that server. Raises DamagedError where synced data is missing.
    """
    if database.meta(DURABILITY) == "full" or database.meta(ENDED) == str(database.last_seq()):
        return
    last = database.last_seq() + database.missing
    synced = int(database.meta(SYNCED) or 0)
    for row in database.updates_after(synced):
        try:
            if row.location is not None:
                segments.check(row.location)
        except DamagedError:
            database.cut_back(row.seq)
            break
    log.warning(
        "the machine stopped while the server was running: events acknowledged in the %g s before may be lost, as "
        "durability normal allows; the run resumes after event %d, %d later ones are known to be lost, and clients get "
        "another run id",
        sync_every_s,
        database.last_seq(),
        last - database.last_seq(),
    )
    database.set_meta({RUN_ID: ""})


# --- a directory that was put back from a copy ---


def check_is_no_copy(directory: RunDirectory, database: Database, segments: Segments) -> str | None:
    """Compare a database with the files beside it. segments: before `cut`.

    Returns the reason why the run needs another id: the last server did not leave the directory like this. None if it
    did. Raises DamagedError where files are newer than the database.
    """
    if database.meta(BOOT) is None:  # no server has used it
        paths = [*checkpoints.files(directory.checkpoints), *segments.paths]
        if paths:
            raise _older(directory, f"there is {paths[-1].parent.name}/{paths[-1].name}", "nothing at all")
        return None
    newer = [path.name for path in newer_checkpoints(directory, database)]
    if newer:
        raise _older(directory, f"the newest checkpoint is {max(newer)}", f"version {last_version(database)}")
    if database.newest_is_missing and not database.machine_restarted:
        if segments.beyond(database.segment_ends()):
            raise _older(
                directory,
                "run.db-newest is missing, and segments hold updates that run.db does not name",
                f"event {database.last_seq()}",
            )
        return "run.db-newest is missing"
    marks = database.meta(MARKS)
    if marks is not None and mark(directory) not in marks.split():
        return "its files are copies"
    return None


def _older(directory: RunDirectory, witness: str, end: str) -> DamagedError:
    return DamagedError(
        f"{directory.database} is older than the files beside it: {witness}, but it ends with {end}; put the whole "
        f"directory back from one copy, or run `unstale restore {directory.path}` to resume from the content of run.db"
    )


def newer_checkpoints(directory: RunDirectory, database: Database) -> list[Path]:
    """Checkpoints of versions that the database does not have, which happens only with an older copy of it.

    A round is synced before its checkpoint is written.
    """
    last = last_version(database)
    paths = checkpoints.files(directory.checkpoints)
    return [path for path in paths if path.stem.isdecimal() and checkpoints.version_of(path) > last]


def mark(directory: RunDirectory) -> str:
    """A text that differs for a copy: inodes of three files, and a time that each start changes."""
    with user_errors("look at", directory.path):
        files = [os.stat(path) for path in (directory.lock, directory.database, directory.config)]
    return "-".join(str(number) for number in (int(files[0].st_mtime), *(file.st_ino for file in files)))


def begin(directory: RunDirectory, database: Database, facts: dict[str, str]) -> None:
    """Store facts about the start of a server (see `Database.set_meta`), and a mark for the next start."""
    now = mark(directory)
    started_s, _, inodes = now.partition("-")
    next_s = int(started_s) + 1  # whole seconds, because of some file systems
    # A server that is killed between the two steps leaves the former mark.
    database.set_meta({**facts, MARKS: f"{now} {next_s}-{inodes}"})
    with user_errors("write", directory.lock):
        os.utime(directory.lock, (next_s, next_s))


def set_aside(directory: RunDirectory, paths: Collection[Path], copied: Collection[Path] = ()) -> list[Path]:
    """Move files into a new folder below `set-aside`, and copy others; returns the new paths."""
    if not paths and not copied:
        return []
    base = directory.path / SET_ASIDE
    moved = []
    with user_errors("set files aside in", base):
        base.mkdir(mode=0o700, exist_ok=True)
        folder = base / str(next_number(base))
        for path in [*paths, *copied]:
            to = folder / path.relative_to(directory.path)
            to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path in copied:
                shutil.copyfile(path, to)
            else:
                path.rename(to)
            moved.append(to)
        for changed in {directory.path, base, folder, *(path.parent for path in [*paths, *moved])}:
            sync_folder(changed)
    return moved


def next_number(base: Path) -> int:
    """Name of the next folder in `set-aside`."""
    return 1 + max((int(path.name) for path in base.iterdir() if path.name.isdecimal()), default=0)


def forget_uploads(directory: RunDirectory) -> None:
    """Delete partial uploads: another run id has other tasks."""
    for path in directory.transfers.glob("*.part"):
        path.unlink(missing_ok=True)
