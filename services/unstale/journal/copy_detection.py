"""Whether a run directory is as its last server left it, or was put back from an older copy."""

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from unstale.journal import checkpoints
from unstale.journal.database import BOOT, MARKS, Database
from unstale.journal.disk import DamagedError, sync_folder, trouble
from unstale.journal.rundir import SET_ASIDE, RunDirectory
from unstale.journal.segments import Segments

_WAY_OUT = (
    "put the whole directory back from one copy, or run `unstale restore {}` to resume from what run.db holds"
)


def check(directory: RunDirectory, database: Database, segments: Segments) -> str | None:
    """Compare a database with the files beside it.

    Args:
        directory: Opened for writing.
        database: Of the directory.
        segments: Of the directory, before anything of them is cut off.

    Returns:
        Why the directory is not as its last server left it, so that the run needs another id; None where it is.

    Raises:
        DamagedError: Files of the directory are newer than its database, which must not be used then.
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
    """A database that no server has written to has no files beside it."""
    found = sorted([*directory.checkpoints.glob(f"*{checkpoints.SUFFIX}"), *segments.paths])
    if found:
        raise _older(directory, f"there is {found[-1].parent.name}/{found[-1].name}", "nothing at all")


def newer_checkpoints(directory: RunDirectory, database: Database) -> list[Path]:
    """Files of versions that the database does not know.

    A round is synced before its checkpoint is written, so a database that was not put back knows every version that a
    checkpoint has.
    """
    last = last_version(database)
    paths = sorted(directory.checkpoints.glob(f"*{checkpoints.SUFFIX}"))
    return [path for path in paths if path.stem.isdecimal() and checkpoints.version_of(path) > last]


def last_version(database: Database) -> int:
    """The last version that a database knows, 0 without any; from a checkpoint where its round is not kept."""
    saved = [row.version for row in database.checkpoints()[:1]]
    return max([database.last_version(), *saved])


def mark(directory: RunDirectory) -> str:
    """What a copy of the directory does not share: the inodes of three files, and a time that each start changes."""
    try:
        found = [os.stat(path) for path in (directory.lock, directory.database, directory.config)]
    except OSError as error:
        raise trouble("look at", directory.path, error) from None
    return "-".join(str(number) for number in (int(found[0].st_mtime), *(file.st_ino for file in found)))


def begin(directory: RunDirectory, database: Database, facts: dict[str, str]) -> None:
    """Store facts about the start of a server, and a mark by which the next start recognises the directory.

    Args:
        directory: Opened for writing.
        database: Of the directory.
        facts: For `Database.set_meta`.
    """
    now = mark(directory)
    started_s, _, inodes = now.partition("-")
    next_s = int(started_s) + 1  # whole seconds: some file systems keep no fractions
    # A server that is killed between the two leaves the mark of before.
    database.set_meta({**facts, MARKS: f"{now} {next_s}-{inodes}"})
    try:
        os.utime(directory.lock, (next_s, next_s))
    except OSError as error:
        raise trouble("write", directory.lock, error) from None


def set_aside(directory: RunDirectory, paths: Collection[Path], copied: Collection[Path] = ()) -> list[Path]:
    """Move files out of the way, into a new folder below `set-aside`.

    Args:
        directory: Opened for writing.
        paths: Of files below the directory.
        copied: Of files that also stay where they are.

    Returns:
        Where they, and the copies, are now.
    """
    if not paths and not copied:
        return []
    base = directory.path / SET_ASIDE
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        number = next_number(base)
        moved = []
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
    except OSError as error:
        raise trouble("set files aside in", base, error) from None
    return moved


def next_number(base: Path) -> int:
    """Name of the next folder below `set-aside`. base: that folder."""
    return 1 + max((int(path.name) for path in base.iterdir() if path.name.isdecimal()), default=0)


def forget_uploads(directory: RunDirectory) -> None:
    """Delete updates that have come in part: another run id has other tasks."""
    for path in directory.transfers.glob("*.part"):
        path.unlink(missing_ok=True)


def _older(directory: RunDirectory, witness: str, end: str) -> DamagedError:
    return DamagedError(
        f"{directory.database} is older than the files beside it: {witness}, but it ends with {end}; "
        f"{_WAY_OUT.format(directory.path)}"
    )
