"""Detects a run directory that was put back from a copy."""

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from unstale.journal import checkpoints
from unstale.journal.database import BOOT, MARKS, Database
from unstale.journal.disk import DamagedError, sync_folder, user_errors
from unstale.journal.rundir import SET_ASIDE, RunDirectory
from unstale.journal.segments import Segments

_REMEDY = "put the whole directory back from one copy, or run `unstale restore {}` to resume from the content of run.db"


def check(directory: RunDirectory, database: Database, segments: Segments) -> str | None:
    """Compare a database with the files beside it. segments: before `cut`.

    Returns:
        Reason why the run needs another id: the last server did not leave the directory like this. None if it did.

    Raises:
        DamagedError: Files are newer than the database.
    """
    if database.meta(BOOT) is None:
        _check_unused(directory, segments)
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


def _check_unused(directory: RunDirectory, segments: Segments) -> None:
    """Raise DamagedError where there are files beside a database that no server has used."""
    paths = [*checkpoints.files(directory.checkpoints), *segments.paths]
    if paths:
        raise _older(directory, f"there is {paths[-1].parent.name}/{paths[-1].name}", "nothing at all")


def newer_checkpoints(directory: RunDirectory, database: Database) -> list[Path]:
    """Checkpoints of versions that the database does not have, which happens only with an older copy of it.

    A round is synced before its checkpoint is written.
    """
    last = last_version(database)
    paths = checkpoints.files(directory.checkpoints)
    return [path for path in paths if path.stem.isdecimal() and checkpoints.version_of(path) > last]


def last_version(database: Database) -> int:
    """The last version in a database, 0 without any; from a checkpoint where its round was deleted."""
    saved = [row.version for row in database.checkpoints()[:1]]
    return max([database.last_version(), *saved])


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
        number = next_number(base)
        for path in [*paths, *copied]:
            to = base / str(number) / path.relative_to(directory.path)
            to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path in copied:
                shutil.copyfile(path, to)
            else:
                path.rename(to)
            moved.append(to)
        for folder in {directory.path, base, base / str(number), *(path.parent for path in [*paths, *moved])}:
            sync_folder(folder)
    return moved


def next_number(base: Path) -> int:
    """Name of the next folder in `set-aside`."""
    return 1 + max((int(path.name) for path in base.iterdir() if path.name.isdecimal()), default=0)


def forget_uploads(directory: RunDirectory) -> None:
    """Delete partial uploads: another run id has other tasks."""
    for path in directory.transfers.glob("*.part"):
        path.unlink(missing_ok=True)


def _older(directory: RunDirectory, witness: str, end: str) -> DamagedError:
    return DamagedError(
        f"{directory.database} is older than the files beside it: {witness}, but it ends with {end}; "
        f"{_REMEDY.format(directory.path)}"
    )
