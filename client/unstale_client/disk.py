"""Files, folders and locks, with one-line error messages."""

import errno
import logging
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from unstale_client.errors import UserError

log = logging.getLogger("unstale.disk")

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open` that refuses symbolic links."""

OPEN_S, RETRY_S = 5.0, 0.005  # time and pause of attempts to open a file while no descriptor is free


class DamagedError(UserError):
    """Stored data is damaged: a flipped bit, or a truncated or missing file."""


class NoRoomError(UserError):
    """The disk has no room; nothing was stored."""

    needed_bytes = 0  # size of the file, 0 where it is not known


_NO_ROOM = {
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "the disk quota is used up; make room",
    errno.EFBIG: "the file may not grow any further; raise the limit of file sizes (ulimit -f)",
}
_OTHER = {
    errno.EROFS: "the file system is read-only; name a folder where you may write",
    errno.EACCES: "permission denied; name a folder where you may write",
    errno.EPERM: "permission denied; name a folder where you may write",
    errno.ELOOP: "it is a symbolic link; remove it",
    errno.EIO: "the disk reports an error; its file system needs a check",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
    errno.ENFILE: "too many open files; raise the limit (ulimit -n)",
}


def trouble(doing: str, path: Path, error: OSError) -> UserError:
    """The error for an OSError: `cannot write FILE: the disk is full; make room`. doing: such as "write"."""
    if error.errno in _NO_ROOM:
        return NoRoomError(f"cannot {doing} {path}: {_NO_ROOM[error.errno]}")
    why = _OTHER.get(error.errno or 0, (error.strerror or str(error)).lower())
    return UserError(f"cannot {doing} {path}: {why}")


@contextmanager
def user_errors(doing: str, path: Path) -> Iterator[None]:
    """Raise an OSError of the block as its `trouble`."""
    try:
        yield
    except OSError as error:
        raise trouble(doing, path, error) from None


def open_file(path: str | Path, flags: int, mode: int = 0o777) -> int:
    """`os.open` without symbolic links, by `when_free`. Raises OSError."""
    return when_free(lambda: os.open(path, flags | NOFOLLOW, mode))


@contextmanager
def opened(path: Path, flags: int, mode: int = 0o777) -> Iterator[int]:
    """`open_file` for the block. Raises OSError."""
    file = open_file(path, flags, mode)
    try:
        yield file
    finally:
        os.close(file)


def duplicate(file: int) -> int:
    """`os.dup`, by `when_free`. Raises OSError."""
    return when_free(lambda: os.dup(file))


def when_free(take: Callable[[], int]) -> int:
    """Take a file descriptor; while none is free, try again for OPEN_S. Raises OSError.

    Connections may use all descriptors until the server closes them (`ConnectionLimiter`), which must not end the run.
    """
    for _ in range(int(OPEN_S / RETRY_S)):
        try:
            return take()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        select.select([], [], [], RETRY_S)  # a pause
    return take()


def private_folder(path: Path) -> None:
    """Create a folder for its owner alone, or check the owner and mode of an existing one.

    Write permission of the group is removed, with a warning. Read permissions stay: its files are for the owner alone.
    Raises UserError where it belongs to another user, or every user may write to it; OSError.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sys.platform == "win32":
        return  # has no such modes
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        raise UserError(
            f"{path} belongs to user {status.st_uid}, expected a folder of user {os.geteuid()}, who runs this process; "
            f"run `chown {os.geteuid()} {path}`, or name another folder"
        )
    if mode & stat.S_IWOTH:
        raise UserError(
            f"every user may write to {path} (mode {mode:04o}), expected a folder of its owner alone; look at what is "
            f"in it, then run `chmod 700 {path}`, or name another folder"
        )
    if mode & stat.S_IWGRP:
        path.chmod(mode & ~stat.S_IWGRP)
        log.warning("%s: its group may not write to it any more (mode was %04o)", path, mode)


def locked(path: Path, in_use: str, flags: int = os.O_RDWR | os.O_CREAT | NOFOLLOW) -> int:
    """Lock a file, or with `O_DIRECTORY` a folder, until it is closed, and return it.

    Raises UserError(in_use) where another process has the lock.
    """
    file = os.open(path, flags, 0o600)
    if sys.platform == "win32":
        return file  # has no such locks
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(file)
        if isinstance(error, BlockingIOError):
            raise UserError(in_use) from None
        raise
    return file


def write_all(file: int, data: memoryview, offset: int) -> None:
    """Write all data at an offset; one `pwrite` may write only a part. Raises OSError."""
    while len(data):
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def sync_folder(folder: Path) -> None:
    """Make the list of files of a folder durable. Raises OSError."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as file:
        os.fsync(file)
