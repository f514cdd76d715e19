"""Logs and alarms while the disk of a run is full."""

import logging
from pathlib import Path

from unstale.errors import UserError
from unstale.journal.disk import free_bytes

log = logging.getLogger("unstale.journal")


class DiskSpaceMonitor:
    """Logs one line for each change of state. `alarm` and `refusal`: any thread; other methods: one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._refused_below: int | None = None  # bytes that the last refused update needs
        self._save_needs: int | None = None  # bytes that the skipped checkpoint needs
        self._left_out = ""  # message about that checkpoint

    def on_update(self, needed_bytes: int, room_bytes: int) -> None:
        """An update arrived: it is accepted if enough bytes are free."""
        refused_below = self._refused_below
        if room_bytes < needed_bytes:
            self._refused_below = needed_bytes
            if refused_below is None:
                log.warning("%s", self._refused(needed_bytes))
        elif refused_below is not None and room_bytes >= refused_below:
            self._refused_below = None
            log.info("%s: there is room again; updates are accepted", self._folder)

    def on_checkpoint_left_out(self, version: int, error: UserError, needed_bytes: int) -> None:
        """A checkpoint was not written. needed_bytes: that must be free for it."""
        if self._save_needs is None:
            log.warning(
                "the checkpoint of version %d is left out (%s); another one is tried when there is room",
                version,
                error,
            )
        self._save_needs = needed_bytes
        self._left_out = f"no checkpoint is written: {error}"

    def on_checkpoint_saved(self, version: int) -> None:
        """A checkpoint was written."""
        if self._save_needs is not None:
            self._save_needs, self._left_out = None, ""
            log.info("there is room again: the checkpoint of version %d is written", version)

    def may_save(self) -> bool:
        """Whether a checkpoint was not written, and there is room for it now."""
        return self._save_needs is not None and free_bytes(self._folder) >= self._save_needs

    def alarm(self) -> str | None:
        """Message about a full disk, None without one."""
        return self.refusal() or self._left_out or None

    def refusal(self) -> str | None:
        """Message about refused updates, None while updates are accepted."""
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
