"""What can go wrong with a disk, told in one sentence each."""

import errno
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path

from unstale.errors import UserError

PART = ".part"
"""How the name ends of a file that is being written, and takes its own name when it is whole."""

OPEN_S, RETRY_S = (
    5.0,
    0.005,
)  # how long, and how often, a file is tried that cannot be opened for want of descriptors


class DamagedError(UserError):
    """What was stored is not what is there: a flipped bit, a cut or a missing file."""


class NoRoomError(UserError):
    """There is no room for what should be stored. Nothing of it was."""


_NO_ROOM = {
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "the disk quota is used up; make room",
    errno.EFBIG: "the file may not grow any further; raise the limit of file sizes (ulimit -f)",
}
_OTHER = {
    errno.EROFS: "the file system is read-only; name a folder where you may write",
    errno.EACCES: "permission denied; name a folder where you may write",
    errno.EPERM: "permission denied; name a folder where you may write",
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
    """As `os.open`, once the process has a descriptor for it (`when_free`). Raises OSError."""
    return when_free(lambda: os.open(path, flags, mode))


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


def locked(path: Path, in_use: str) -> int:
    """The open lock file, which this process alone holds; the system takes the lock back when the process ends. Raises
    UserError where another one holds it, with the sentence `in_use`."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if sys.platform == "win32":
        return lock  # has no such locks
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UserError(in_use) from None
    except BaseException:
        os.close(lock)
        raise
    return lock


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
