"""A file that is either complete or absent: JSON facts and binary parts.

8 bytes    MAGIC, with the version of this format
4 bytes    size of the facts, little-endian
facts      JSON, perhaps with spaces behind it; its `parts` are the sizes of the parts
parts      one after the other
8 bytes    xxh3_64 of all bytes before, little-endian
"""

import ctypes
import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import xxhash
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from unstale_client.built_vectors import HEAD_BYTES, BuiltFile, file_of
from unstale_client.disk import NOFOLLOW, DamagedError, sync_folder, user_errors, write_all

MAGIC = b"unstale1"
TEMPORARY = ".tmp"
"""Suffix of a file that is being written."""

MAPPED_BYTES = 1024 * 1024
"""Least size of a file that is mapped instead of read: 21 GB/s instead of 3 at 45 MB, and only page cache, which the
system can reclaim. Smaller files are faster to read. Files here are never truncated, only replaced and deleted, and a
mapping survives both.
"""

_CHECKSUM_BYTES = 8
_SIZE_BYTES = 4


class Facts(BaseModel):
    """Facts of every file; subclasses add their own. parts: sizes in bytes."""

    model_config = ConfigDict(strict=True, frozen=True)

    parts: tuple[NonNegativeInt, ...]


F = TypeVar("F", bound=Facts)


@dataclass(frozen=True, slots=True)
class Record(Generic[F]):
    """Contents of a file. parts: read-only views of it."""

    facts: F
    parts: Sequence[memoryview]


def write(
    path: Path, facts: Mapping[str, Any], parts: Sequence[Sequence[bytes | memoryview]], *, durable: bool
) -> None:
    """Write or replace a file. Raises OSError, and then leaves the old file as it was.

    parts: each in frames of format "B". If the second one begins with the vector of a `built_vectors.BuiltFile`, that
    becomes the file and is not copied, where the system can name it. durable: the file survives a power failure.
    """
    sizes = [sum(len(frame) for frame in frames) for frames in parts]
    encoded = json.dumps({**facts, "parts": sizes}).encode()
    temporary = path.with_name(path.name + TEMPORARY)
    built = file_of(parts[1]) if len(parts) > 1 else None
    if built is not None:
        try:
            _complete(*built, encoded, parts, temporary, durable=durable)
            _rename(temporary, path, durable=durable)
            return
        except OSError:
            temporary.unlink(missing_ok=True)  # before it would be overwritten: the frames lie there
    head = _head(encoded)
    checksum = xxhash.xxh3_64(head)
    try:
        with open(temporary, "wb", opener=_open_private) as file:
            file.write(head)
            for frames in parts:
                for frame in frames:
                    file.write(frame)
                    checksum.update(frame)
            file.write(checksum.intdigest().to_bytes(_CHECKSUM_BYTES, "little"))
            if durable:
                file.flush()
                os.fsync(file.fileno())
        _rename(temporary, path, durable=durable)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _complete(
    built: BuiltFile,
    count: int,
    encoded: bytes,
    parts: Sequence[Sequence[bytes | memoryview]],
    temporary: Path,
    *,
    durable: bool,
) -> None:
    """Write everything but the first `count` frames of the second part, which are there, and give the file a name.

    Spaces behind the JSON fill the room before them. Raises OSError.
    """
    before = b"".join(parts[0])
    room = HEAD_BYTES - len(before) - len(_head(encoded))
    if room < 0:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    before = _head(encoded + b" " * room) + before
    checksum = xxhash.xxh3_64(before)
    for frame in parts[1][:count]:
        checksum.update(frame)
    file = built.take()
    try:
        temporary.unlink(missing_ok=True)
        # With a descriptor, which an absolute path ignores, Python follows the link to the file.
        os.link(f"/proc/self/fd/{file}", temporary.absolute(), src_dir_fd=file, follow_symlinks=True)
        write_all(file, memoryview(before), 0)
        end = len(built)
        for frame in (*parts[1][count:], *chain(*parts[2:])):
            checksum.update(frame)
            write_all(file, memoryview(frame), end)
            end += len(frame)
        write_all(file, memoryview(checksum.intdigest().to_bytes(_CHECKSUM_BYTES, "little")), end)
        if durable:
            os.fsync(file)
    finally:
        os.close(file)


def _rename(temporary: Path, path: Path, *, durable: bool) -> None:
    os.replace(temporary, path)
    if durable:
        sync_folder(path.parent)


def _head(encoded: bytes) -> bytes:
    return MAGIC + len(encoded).to_bytes(_SIZE_BYTES, "little") + encoded


def read(path: Path, kind: type[F]) -> Record[F]:
    """Read a file with facts of a kind. Raises DamagedError for other contents, UserError for an unreadable file."""
    with user_errors("read", path):
        contents = _contents(path)
    body, checksum = contents[:-_CHECKSUM_BYTES], contents[-_CHECKSUM_BYTES:]
    is_intact = xxhash.xxh3_64_intdigest(body) == int.from_bytes(checksum, "little")
    if contents[: len(MAGIC)] != MAGIC or not is_intact:
        raise damaged(path)
    start = len(MAGIC) + _SIZE_BYTES
    end = start + int.from_bytes(contents[len(MAGIC) : start], "little")
    try:
        facts = kind.model_validate_json(bytes(body[start:end]))
    except ValidationError:
        raise damaged(path) from None  # intact, but of an unknown version
    if end + sum(facts.parts) != len(body):
        raise damaged(path)
    parts = []
    for size in facts.parts:
        parts.append(body[end : end + size])
        end += size
    return Record(facts, parts)


def damaged(path: Path) -> DamagedError:
    return DamagedError(f"{path} is damaged")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | NOFOLLOW, 0o600)


def _contents(path: Path) -> memoryview:
    size = path.stat().st_size
    if size >= MAPPED_BYTES:
        with suppress(OSError):  # the file system cannot map
            return np.asarray(_MappedFile(path, size)).data
    return memoryview(path.read_bytes())


class _MappedFile:
    """A file mapped into memory, as a read-only array of bytes.

    Not by the module `mmap`, which keeps the file open before Python 3.13: a process may host thousands of clients.
    Raises OSError.
    """

    def __init__(self, path: Path, size: int) -> None:
        if sys.platform == "win32":
            raise OSError("has no such mapping")
        import mmap

        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        self._unmap = library.munmap
        self._unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        with path.open("rb") as file:
            address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), 0)
        self._address = None if address == ctypes.c_void_p(-1).value else address
        if self._address is None:
            raise OSError(ctypes.get_errno(), "cannot map the file")
        self._size = size
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, True), "version": 3}

    def __del__(self) -> None:
        if getattr(self, "_address", None) is not None:
            self._unmap(self._address, self._size)
