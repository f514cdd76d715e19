"""What can go wrong with a disk, told in one sentence each."""

import errno
import logging
import os
import select
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from unstale.errors import UserError

log = logging.getLogger("unstale.journal")

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
"""For `os.open`: a symbolic link in the place of a file is an error."""

PART = ".part"
"""How the name ends of a file that is being written, and takes its own name when it is whole."""

OPEN_S, RETRY_S = (
    5.0,
    0.005,
)  # how long, and how often, a file is tried that cannot be opened for want of descriptors


class DamagedError(UserError):
    """What was stored is not what is there: a flipped bit, a cut or a missing file."""


class NoRoomError(UserError):
    """There is no room for what should be stored. Nothing of it was.

    Attributes:
        needed_bytes: Of the file that should be written, 0 where that is not known.
    """

    needed_bytes = 0


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
    """The sentence for an error of the operating system: `cannot write FILE: the disk is full; make room`.

    doing: such as "write". `NoRoomError` for what room would mend.
    """
    if error.errno in _NO_ROOM:
        return NoRoomError(f"cannot {doing} {path}: {_NO_ROOM[error.errno]}")
    why = _OTHER.get(error.errno or 0, (error.strerror or str(error)).lower())
    return UserError(f"cannot {doing} {path}: {why}")


def open_file(path: str | Path, flags: int, mode: int = 0o777) -> int:
    """As `os.open` without symbolic links, once the process has a descriptor (`when_free`). Raises OSError."""
    return when_free(lambda: os.open(path, flags | NOFOLLOW, mode))


def duplicate(file: int) -> int:
    """As `os.dup`, once the process has a descriptor for it (`when_free`). Raises OSError."""
    return when_free(lambda: os.dup(file))


def when_free(take: Callable[[], int]) -> int:
    """Take a descriptor; while the process has none left, wait a moment and try again.

    Connections may take every descriptor for as long as the server needs to cut them (`ConnectionLimiter`); a run does
    not end for that. Raises OSError, after OPEN_S with EMFILE too.
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
    """Make a folder that its owner alone may use, or see whether one that exists can be trusted.

    A folder of our own that its group may write to is taken from the group, with a warning. Who may read it is left as
    it is: files in it are made for the owner alone.

    Raises:
        OSError: It cannot be made or looked at.
        UserError: It belongs to another user, or every user may write to it.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sys.platform == "win32":
        return  # has no such modes
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        raise UserError(
            f"{path} belongs to user {found.st_uid}, expected a folder of user {os.geteuid()}, who runs this process; "
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


def check_no_links(folder: Path, names: Iterable[str]) -> None:
    """Raise UserError where a file or folder is a symbolic link: what it leads to is not ours to write to.

    Args:
        folder: In which they are.
        names: Of files and folders, which need not be there.
    """
    for name in names:
        if (folder / name).is_symlink():
            raise UserError(
                f"{folder / name} is a symbolic link, expected a file or folder of its own; remove it, or name another "
                "folder"
            )


def locked(path: Path, in_use: str) -> int:
    """The open lock file, which this process alone holds; the system takes the lock back when the process ends. Raises
    UserError where another one holds it, with the message `in_use`."""
    return _flocked(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | NOFOLLOW, 0o600), in_use)


def locked_folder(path: Path, in_use: str) -> int:
    """The same for a folder: this lock cannot be deleted with a file."""
    return _flocked(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), in_use)


def _flocked(file: int, in_use: str) -> int:
    if sys.platform == "win32":
        return file  # has no such locks
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise UserError(in_use) from None
    except BaseException:
        os.close(file)
        raise
    return file


def boot() -> str:
    """What tells one start of this machine from the next; "" where that is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def free_bytes(path: Path) -> int:
    """Room left for this user on the file system of a file or folder that exists."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise trouble("measure", path, error) from None
    return found.f_bavail * found.f_frsize


def write_all(file: int, data: memoryview, offset: int) -> None:
    """Write all of it there; one call may write a part only, such as 2 GiB. Raises OSError."""
    while len(data):
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def read_all(file: int, into: memoryview, offset: int) -> int:
    """Fill `into` from there; how many bytes there were, fewer at the end of the file. Raises OSError."""
    filled = 0
    while filled < len(into):
        count = os.preadv(file, [into[filled:]], offset + filled)
        if count == 0:
            break
        filled += count
    return filled


def sync_folder(folder: Path) -> None:
    """Make durable which files a folder holds. Raises OSError."""
    opened = open_file(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
