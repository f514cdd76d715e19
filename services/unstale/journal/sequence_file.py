"""A file beside the database with the number of the newest stored event.

It shows when SQLite's log has lost its end: SQLite ignores such a loss, because a crash may cause it.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path

from xxhash import xxh3_64_intdigest

from unstale.journal.disk import read_all
from unstale_client.disk import DamagedError, open_file, user_errors, write_all

_NUMBER = struct.Struct("<Q")
_SIZE_BYTES = 2 * _NUMBER.size  # the number and its checksum


class SequenceFile:
    """A file of 16 bytes, created and overwritten by `set`. Never synced: valid only until the machine restarts."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self._file = -1
        with user_errors("open", path), suppress(FileNotFoundError):
            self._file = open_file(path, os.O_RDONLY if read_only else os.O_RDWR)
        # The file was absent or empty at opening; `set` leaves this unchanged.
        self.is_missing = self._file < 0 or os.fstat(self._file).st_size == 0

    def get(self) -> int:
        """The number; 0 if the file is absent or empty. Raises DamagedError."""
        if self._file < 0:
            return 0
        data = bytearray(_SIZE_BYTES)
        with user_errors("read", self.path):
            if read_all(self._file, memoryview(data), 0) == 0:
                return 0
        number: int = _NUMBER.unpack_from(data)[0]
        if _packed(number) != data:
            raise DamagedError(
                f"{self.path} is damaged; run `unstale restore {self.path.parent}` to resume from the content of run.db"
            )
        return number

    def set(self, number: int) -> None:
        """Write the number; call it after the database has stored the event. Not for a read-only file."""
        with user_errors("write", self.path):
            if self._file < 0:
                self._file = open_file(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            write_all(self._file, memoryview(_packed(number)), 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _packed(number: int) -> bytes:
    data = _NUMBER.pack(number)
    return data + _NUMBER.pack(xxh3_64_intdigest(data))
