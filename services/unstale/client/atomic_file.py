"""A file that is there whole or not at all: a few facts as JSON, then parts of raw bytes.

8 bytes    MAGIC, with the version of this format
4 bytes    size of the facts, little-endian
facts      JSON; among them `parts`, the size of each part
parts      one behind the other
8 bytes    xxh3_64 of all the bytes before, little-endian
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import xxhash
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from unstale.journal.disk import NOFOLLOW, DamagedError, sync_folder, trouble

MAGIC = b"unstale1"
TEMPORARY = ".tmp"
"""What the name of a file ends with while it is written."""

MAPPED_BYTES = 1024 * 1024
"""Files from here on are mapped and not read: measured at 45 MB, 21 GB/s in place of 3, and no memory but the page
cache, which the system takes back when it is short. Below it, a mapping costs more than it saves. Whoever maps a file
must be sure that nobody cuts it short: here files are only replaced and deleted, which a mapping outlives.
"""

_CHECKSUM_BYTES = 8
_SIZE_BYTES = 4


class Facts(BaseModel):
    """What every file says of itself; subclasses say more. parts: their sizes, in bytes."""

    model_config = ConfigDict(strict=True, frozen=True)

    parts: tuple[NonNegativeInt, ...]


F = TypeVar("F", bound=Facts)


@dataclass(frozen=True, slots=True)
class Record(Generic[F]):
    """What a file holds. parts: views of the file; not to be written to."""

    facts: F
    parts: Sequence[memoryview]


def write(
    path: Path,
    facts: Mapping[str, Any],
    parts: Sequence[Sequence[bytes | memoryview]],
    *,
    durable: bool,
) -> None:
    """Put a file there, in place of one of that name. parts: each in frames, of format "B".

    durable: it is there also after the machine has died. Raises OSError, and then leaves everything as it was.
    """
    sizes = [sum(len(frame) for frame in frames) for frames in parts]
    about = json.dumps({**facts, "parts": sizes}).encode()
    head = MAGIC + len(about).to_bytes(_SIZE_BYTES, "little") + about
    checksum = xxhash.xxh3_64(head)
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with open(temporary, "wb", opener=_for_the_owner) as file:
            file.write(head)
            for frames in parts:
                for frame in frames:
                    file.write(frame)
                    checksum.update(frame)
            file.write(checksum.intdigest().to_bytes(_CHECKSUM_BYTES, "little"))
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if durable:
            sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def read(path: Path, kind: type[F]) -> Record[F]:
    """What was written there. kind: of facts. Raises DamagedError when it is something else now, UserError when it
    cannot be read."""
    try:
        contents = _contents(path)
    except OSError as error:
        raise trouble("read", path, error) from None
    body, checksum = contents[:-_CHECKSUM_BYTES], contents[-_CHECKSUM_BYTES:]
    if contents[: len(MAGIC)] != MAGIC or xxhash.xxh3_64_intdigest(body) != int.from_bytes(
        checksum, "little"
    ):
        raise damaged(path)
    start = len(MAGIC) + _SIZE_BYTES
    end = start + int.from_bytes(contents[len(MAGIC) : start], "little")
    try:
        facts = kind.model_validate_json(bytes(body[start:end]))
    except ValidationError:
        raise damaged(path) from None  # whole, and of no version that we know
    if end + sum(facts.parts) != len(body):
        raise damaged(path)
    parts = []
    for size in facts.parts:
        parts.append(body[end : end + size])
        end += size
    return Record(facts, parts)


def damaged(path: Path) -> DamagedError:
    """The sentence for a file that is not what was written there."""
    return DamagedError(f"{path} is damaged")


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags | NOFOLLOW, 0o600)


def _contents(path: Path) -> memoryview:
    """The file's bytes, mapped if there are many. Raises OSError."""
    size = path.stat().st_size
    if size >= MAPPED_BYTES:
        # Not with `mmap`, which holds the file open: a process may host thousands of clients.
        with suppress(RuntimeError):  # a file system that cannot map
            return (
                torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).numpy().data.cast("B")
            )
    return memoryview(path.read_bytes())
