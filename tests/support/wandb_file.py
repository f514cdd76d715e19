"""Reads the file of a run of W&B offline, which wandb itself only sends.

A file has a header of 7 bytes and records in the form of LevelDB's log: blocks of 32 KiB with pieces of records, each
with a checksum (4 bytes), a length (2) and a type (1: whole, 2: first, 3: middle, 4: last). A record is a message of
protobuf.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32 * 1024
HEADER, PIECE_HEADER = 7, 7


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows that were logged, without the keys of wandb's own. folder: of one run."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    logged = []
    for data in _records(file.read_bytes()):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            logged.append({name: value for name, value in items.items() if not name.startswith("_")})
    return logged


def _records(data: bytes) -> Iterator[bytes]:
    offset, parts = HEADER, b""
    while offset + PIECE_HEADER <= len(data):
        left = BLOCK - offset % BLOCK
        if left < PIECE_HEADER:  # the rest of a block is empty
            offset += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, offset)
        offset += PIECE_HEADER
        parts += data[offset : offset + length]
        offset += length
        if kind in (1, 4):
            yield parts
            parts = b""
