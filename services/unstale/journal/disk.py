"""Files, folders and free space, with one-line error messages."""

import errno
import logging
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from unstale.errors import UserError

log = logging.getLogger("unstale.journal")

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open` that refuses symbolic links."""

PART = ".part"
"""Suffix of a file that is being written; it is renamed when it is complete."""

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


def boot() -> str:
    """Id of this boot of the machine; "" where it is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def free_bytes(path: Path) -> int:
    """Free space for this user on the file system of an existing file or folder."""
    with user_errors("measure", path):
        status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def write_all(file: int, data: memoryview, offset: int) -> None:
    """Write all data at an offset; one `pwrite` may write only a part. Raises OSError."""
    while len(data):
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def read_all(file: int, into: memoryview, offset: int) -> int:
    """Read into a buffer; returns the number of bytes, fewer at the end of the file. Raises OSError."""
    filled = 0
    while filled < len(into):
        count = os.preadv(file, [into[filled:]], offset + filled)
        if count == 0:
            break
        filled += count
    return filled


def sync_folder(folder: Path) -> None:
    """Make the list of files of a folder durable. Raises OSError."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as file:
        os.fsync(file)


class DiskSpaceMonitor:
    """Logs one line when updates start or stop to be refused, and checkpoints to be skipped.

    Any thread may call `alarm` and `refusal`, one thread the other methods.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._refused_below: int | None = None  # bytes that the last refused update needs
        self._save_needs: int | None = None  # bytes that the skipped checkpoint needs
        self._left_out = ""  # message about that checkpoint

    def on_update(self, needed_bytes: int, room_bytes: int) -> None:
        """Note whether an update fits on the disk. needed_bytes: for the update, and to remain free.

        A smaller update that fits does not end the refusal: the space must suffice for the refused one.
        """
        refused_below = self._refused_below
        if room_bytes < needed_bytes:
            self._refused_below = needed_bytes
            if refused_below is None:
                log.warning("%s", self._refused(needed_bytes))
        elif refused_below is not None and room_bytes >= refused_below:
            self._refused_below = None
            log.info("%s: there is room again; updates are accepted", self._folder)

    def on_checkpoint_left_out(self, version: int, error: UserError, needed_bytes: int) -> None:
        """Note a skipped checkpoint. needed_bytes: Free bytes that it needs."""
        if self._save_needs is None:
            log.warning(
                "the checkpoint of version %d is left out (%s); another one is tried when there is room", version, error
            )
        self._save_needs = needed_bytes
        self._left_out = f"no checkpoint is written: {error}"

    def on_checkpoint_saved(self, version: int) -> None:
        """Note a written checkpoint."""
        if self._save_needs is not None:
            self._save_needs, self._left_out = None, ""
            log.info("there is room again: the checkpoint of version %d is written", version)

    def may_save(self) -> bool:
        """Whether a checkpoint was skipped and fits now."""
        return self._save_needs is not None and free_bytes(self._folder) >= self._save_needs

    def alarm(self) -> str | None:
        """Message about refused updates or a skipped checkpoint; None without one."""
        return self.refusal() or self._left_out or None

    def refusal(self) -> str | None:
        """Message about refused updates, or about a disk that cannot be read; None if the refused update fits now."""
        refused_below = self._refused_below
        try:
            is_short = refused_below is not None and free_bytes(self._folder) < refused_below
        except UserError as error:
            return str(error)
        return self._refused(refused_below) if refused_below is not None and is_short else None

    def _refused(self, needed_bytes: int) -> str:
        return (
            f"updates are refused: {self._folder} has less than {needed_bytes} bytes free, which run.free_bytes_min "
            "and an update need; make room"
        )
