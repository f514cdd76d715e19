"""Counts the starts of client processes in their folder, in the file `starts`.

Of two processes of one client the server keeps the one that started later, in whatever order their hellos arrive.
Processes that share a folder share its count.
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
    """home: random name of the folder. number: of starts."""

    home: str = Field(pattern=r"^[0-9a-f]{32}$")
    number: int = Field(ge=0)


def next_start(folder: Path, lock: int) -> ProcessStart:
    """Count and store one more start. lock: descriptor of the lock file.

    If it cannot be stored, the next process has the same number, and the server keeps the one with the latest hello.
    """
    with _exclusive(lock):
        path = folder / NAME
        last = _read(path)
        home = secrets.token_hex(16) if last is None else last.home
        number = 1 if last is None else last.number + 1
        try:
            atomic_file.write(path, {"home": home, "number": number}, [], durable=True)
        except OSError as error:
            log.warning("cannot write %s (%s); the start of this process is not counted", path, error.strerror)
        return ProcessStart(home=home, number=number)


def _read(path: Path) -> _Starts | None:
    """None if the file is absent or damaged: the count restarts."""
    if not path.exists():
        return None
    try:
        return atomic_file.read(path, _Starts).facts
    except DamagedError as error:
        log.warning("%s; the count of process starts restarts", error)
        return None


@contextmanager
def _exclusive(lock: int) -> Iterator[None]:
    """Lock the byte after those of all clients."""
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
