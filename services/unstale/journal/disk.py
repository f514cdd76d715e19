"""Free space of the disk, and the alarm about too little."""

import logging
import os
from pathlib import Path

from unstale.errors import UserError
from unstale_client.disk import user_errors

log = logging.getLogger("unstale.journal")

PART = ".part"
"""Suffix of a file that is being written; it is renamed when it is complete."""


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


def read_all(file: int, into: memoryview, offset: int) -> int:
    """Read into a buffer; returns the number of bytes, fewer at the end of the file. Raises OSError."""
    filled = 0
    while filled < len(into):
        count = os.preadv(file, [into[filled:]], offset + filled)
        if count == 0:
            break
        filled += count
    return filled


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
