"""The number of the newest event that was stored, kept beside the database: a second witness.

What is at the end of SQLite's log can get lost without a sign, because a log that ends early is what a crash leaves.
"""

import os
import struct
from pathlib import Path

from xxhash import xxh3_64_intdigest

from unstale.journal.disk import DamagedError, open_file, read_all, trouble, write_all

_NUMBER = struct.Struct("<Q")
_SIZE_BYTES = 2 * _NUMBER.size  # the number and its checksum


class SequenceFile:
    """A file of 16 bytes, written over and never synced: for what goes wrong while the machine lives.

    Attributes:
        is_missing: Whether there was no such file, or an empty one, when this was made. `set` makes it.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        """read_only: `set` will not be called."""
        self.path = path
        self._file = -1
        try:
            self._file = open_file(path, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC)
        except FileNotFoundError:
            self.is_missing = True
        except OSError as error:
            raise trouble("open", path, error) from None
        else:
            self.is_missing = os.fstat(self._file).st_size == 0

    def get(self) -> int:
        """The number, 0 when none was ever set. Raises DamagedError."""
        if self._file < 0:
            return 0
        data = bytearray(_SIZE_BYTES)
        try:
            filled = read_all(self._file, memoryview(data), 0)
        except OSError as error:
            raise trouble("read", self.path, error) from None
        if filled == 0:
            return 0
        number: int = _NUMBER.unpack_from(data)[0]
        if _packed(number) != data:
            raise DamagedError(
                f"{self.path} is damaged; run `unstale restore {self.path.parent}` to resume from what run.db holds"
            )
        return number

    def set(self, number: int) -> None:
        """After the database holds it."""
        try:
            if self._file < 0:
                self._file = open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            write_all(self._file, memoryview(_packed(number)), 0)
        except OSError as error:
            raise trouble("write", self.path, error) from None

    def close(self) -> None:
        """Nothing more will be asked."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _packed(number: int) -> bytes:
    data = _NUMBER.pack(number)
    return data + _NUMBER.pack(xxh3_64_intdigest(data))
