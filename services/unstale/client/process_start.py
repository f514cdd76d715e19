"""Which start of a process this is, counted in the folder where clients keep what must outlive them.

    starts    a name for the folder, drawn once, and how many processes have started there

A server compares: of two processes of one client it keeps the one that started later, in whatever order their hellos
come. Several processes may share a folder; they count together.
"""

import logging
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field

from unstale.client import atomic_file
from unstale.client.atomic_file import Facts
from unstale.errors import UserError
from unstale.journal.disk import DamagedError
from unstale_proto.limits import CLIENTS_MAX
from unstale_proto.messages import ProcessStart

log = logging.getLogger("unstale.client")

NAME = "starts"


class _Starts(Facts):
    home: str = Field(pattern=r"^[0-9a-f]{32}$")
    number: int = Field(ge=0)


def next_start(folder: Path, lock: int) -> ProcessStart:
    """Count one more start, and store it.

    Args:
        folder: of the clients.
        lock: descriptor of its lock file, which this process keeps open.

    Returns:
        The start of this process. Where it cannot be stored, the next process has the same number; the server then
        keeps the one whose hello comes last.
    """
    with _alone(lock):
        path = folder / NAME
        last = _read(path)
        home = secrets.token_hex(16) if last is None else last.home
        number = 1 if last is None else last.number + 1
        try:
            atomic_file.write(path, {"home": home, "number": number}, [], durable=True)
        except OSError as error:
            log.warning(
                "%s cannot be written (%s): the start of this process is not counted", path, error.strerror
            )
        return ProcessStart(home=home, number=number)


def _read(path: Path) -> _Starts | None:
    """None where there is none, or where it is damaged: then another count begins."""
    if not path.exists():
        return None
    try:
        return atomic_file.read(path, _Starts).facts
    except DamagedError as error:
        log.warning("%s; starts of processes are counted anew", error)
        return None


@contextmanager
def _alone(lock: int) -> Iterator[None]:
    """No other process counts meanwhile. The byte behind those of all clients is locked."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    try:
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, CLIENTS_MAX, os.SEEK_SET)
    except OSError as error:
        raise UserError(
            f"client.directory cannot be locked ({error.strerror}); name a folder on another disk"
        ) from None
    try:
        yield
    finally:
        fcntl.lockf(lock, fcntl.LOCK_UN, 1, CLIENTS_MAX, os.SEEK_SET)
