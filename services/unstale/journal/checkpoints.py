"""Checkpoints: the state of a run in one file of the safetensors format, written atomically.

Tensors are stored under their path in the state; the rest is JSON in the metadata, with a checksum of the whole file.
Tensors are written one by one, so memory holds no second copy of all. `safetensors.torch.load_file` can read them.
Format: the README of huggingface/safetensors, "Format".
"""

import errno
import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from xxhash import xxh3_64

from unstale.errors import UserError
from unstale.journal.disk import PART, free_bytes, read_all
from unstale_client.disk import DamagedError, NoRoomError, opened, sync_folder, trouble, user_errors, write_all

FORMAT = "unstale-checkpoint-1"
SUFFIX = ".safetensors"
_ZEROS = "0" * 16  # in place of the checksum while it is computed
_HEAD = b'{"__metadata__":{"checksum":"'  # starts each file, so the checksum has a fixed offset
_CHECKSUM_AT = 8 + len(_HEAD)
_CHUNK_BYTES = 16 * 1024**2
_TYPES = {
    "F64": torch.float64,
    "I64": torch.int64,
    "F32": torch.float32,
    "I32": torch.int32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types by name, the largest first: tensors in this order are aligned in the file."""
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_ORDER = list(_TYPES.values())


class CheckpointFile(NamedTuple):
    """A complete checkpoint on disk."""

    path: Path
    size_bytes: int


def write(
    folder: Path,
    version: int,
    state: Mapping[str, Any],
    about: Mapping[str, Any],
    path: Path | None = None,
    *,
    reserve_bytes: int = 0,
) -> CheckpointFile:
    """Write `00000120.safetensors` for version 120, or the file `path` of the folder, and make it durable.

    state, about: nested dictionaries (with keys int, str, bool or None), lists and tuples of tensors, numbers, strings,
    bytes and None; unchanged during the call. `read_at` needs "seq" in about. reserve_bytes: to leave free on the disk.

    Raises NoRoomError for a full disk, UserError for other values and OS errors; the partial file is deleted.
    """
    tensors: dict[str, Tensor] = {}
    content = {"state": _packed(dict(state), "state", tensors), "about": _packed(dict(about), "about", tensors)}
    tensors = dict(sorted(tensors.items(), key=lambda item: _ORDER.index(item[1].dtype)))
    path = path or path_of(folder, version)
    part = path.with_name(f".{path.name}{PART}")
    header = _header(tensors, content)
    needed_bytes = len(header) + sum(tensor.nbytes for tensor in tensors.values())
    try:
        if free_bytes(folder) < needed_bytes + reserve_bytes:  # an attempt would fill the disk for other programs
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size_bytes = _write(part, header, tensors.values())
        part.replace(path)
        sync_folder(folder)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        user_error = trouble("write", path, error)
        if isinstance(user_error, NoRoomError):
            user_error.needed_bytes = needed_bytes
        raise user_error from None
    return CheckpointFile(path=path, size_bytes=size_bytes)


def path_of(folder: Path, version: int) -> Path:
    """Return the path of a version's file."""
    return folder / f"{version:08d}{SUFFIX}"


def files(folder: Path) -> list[Path]:
    """Return the files of a folder, sorted by version."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def delete(folder: Path, before_version: int) -> None:
    """Delete the files of earlier versions."""
    for path in files(folder):
        if version_of(path) < before_version:
            path.unlink()


def version_of(path: Path) -> int:
    """Return the version in the name of a file."""
    return int(path.stem)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `state` and `about` as written, with tensors on the CPU. Raises DamagedError and other UserErrors."""
    with user_errors("read", path):
        try:
            with opened(path, os.O_RDONLY) as file:
                _verify(file, path)
                return _read(file, path)
        except FileNotFoundError:
            raise _damaged(path, "is missing") from None


def read_at(path: Path, seq: int, last_seq: int) -> tuple[dict[str, Any], int]:
    """Read the state of a checkpoint, and the number of the last event that it covers.

    seq: of the checkpoint's row. last_seq: of the database. The file may cover more than its row: a second checkpoint
    of a version replaces the file, and a server may be killed before it stores the new row. Raises DamagedError for a
    damaged file, and for one that covers less than its row or more than the database.
    """
    state, about = read(path)
    covered = about.get("seq")
    if not isinstance(covered, int) or not seq <= covered <= max(seq, last_seq):
        raise _damaged(path, f"covers events up to {covered}, expected {seq} as in run.db")
    return state, covered


# --- the file ---


def _header(tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> bytearray:
    """Return the length of the JSON and the JSON, padded to a multiple of 8 bytes."""
    entries: dict[str, Any] = {"__metadata__": {"checksum": _ZEROS, "format": FORMAT, "content": json.dumps(content)}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        entries[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = bytearray(struct.pack("<Q", len(text)) + text)
    assert header[8:_CHECKSUM_AT] == _HEAD
    return header


def _write(part: Path, header: bytearray, tensors: Iterable[Tensor]) -> int:
    """Write and sync a file; return its size."""
    contents = (_bytes(tensor.detach().cpu().contiguous()) for tensor in tensors)
    with opened(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600) as file:
        checksum = xxh3_64()
        offset = 0
        for data in chain([memoryview(header)], contents):
            checksum.update(data)
            write_all(file, data, offset)
            offset += len(data)
        write_all(file, memoryview(checksum.hexdigest().encode()), _CHECKSUM_AT)
        os.fsync(file)
    return offset


def _bytes(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _verify(file: int, path: Path) -> None:
    """Raise DamagedError unless the checksum matches."""
    size_bytes = os.fstat(file).st_size
    chunk = memoryview(bytearray(min(_CHUNK_BYTES, max(size_bytes, _CHECKSUM_AT + len(_ZEROS)))))
    stated = b""
    checksum = xxh3_64()
    for offset in range(0, max(size_bytes, 1), _CHUNK_BYTES):
        filled = chunk[: read_all(file, chunk, offset)]
        if offset == 0:
            checksum_range = slice(_CHECKSUM_AT, _CHECKSUM_AT + len(_ZEROS))
            stated = bytes(filled[checksum_range])
            if bytes(filled[8:_CHECKSUM_AT]) != _HEAD or len(stated) < len(_ZEROS):
                raise _damaged(path, "has no checkpoint header")
            filled[checksum_range] = _ZEROS.encode()
        checksum.update(filled)
    if checksum.hexdigest().encode() != stated:
        raise _damaged(path, f"does not match its checksum {stated.decode(errors='replace')}")


def _read(file: int, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a verified file."""
    size = bytearray(8)
    read_all(file, memoryview(size), 0)
    text = bytearray(struct.unpack("<Q", size)[0])
    read_all(file, memoryview(text), 8)
    entries = json.loads(text)
    metadata = entries.pop("__metadata__")
    if metadata["format"] != FORMAT:
        raise UserError(
            f"{path} has the format {metadata['format']!r}, expected {FORMAT!r}; resume with the version of unstale "
            "that wrote it"
        )
    tensors = {}
    for name, entry in entries.items():
        tensor = torch.empty(entry["shape"], dtype=_TYPES[entry["dtype"]])
        read_all(file, _bytes(tensor), 8 + len(text) + entry["data_offsets"][0])
        tensors[name] = tensor
    content = json.loads(metadata["content"])
    return _unpacked(content["state"], tensors), _unpacked(content["about"], tensors)


def _damaged(path: Path, damage: str) -> DamagedError:
    return DamagedError(f"checkpoint {path} {damage}; put it back from a copy, or resume from an older one")


# --- values as JSON ---


def _packed(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON, and add its tensors to `tensors`. A type that JSON lacks is an object with one key.

    name: path of the value.
    """
    kind = type(value)
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is float and not math.isfinite(value):
        return {"float": struct.pack(">d", value).hex()}
    if kind in (*_KEY_TYPES, float):
        return value
    if kind is dict:
        return {"dict": [[_key(key, name), _packed(item, f"{name}.{key}", tensors)] for key, item in value.items()]}
    if kind in (list, tuple):
        items = [_packed(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
        return items if kind is list else {"tuple": items}
    if not isinstance(value, Tensor) or value.dtype not in _NAMES:
        raise _not_storable(value, name)
    while name in tensors:  # the keys 1 and "1" have the same path
        name += "'"
    tensors[name] = value
    return {"tensor": name}


_KEY_TYPES = (bool, int, str, type(None))


def _key(key: Any, name: str) -> Any:
    if type(key) not in _KEY_TYPES:
        raise UserError(f"key {key!r} of {name} is a {type(key).__name__}, expected str, int, bool or None")
    return key


def _not_storable(value: Any, name: str) -> UserError:
    kind = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    return UserError(
        f"{name} is {kind}, expected tensors, numbers, texts, bytes, None, and dictionaries, lists and tuples of them; "
        "change the values that `state_dict` returns"
    )


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Restore a value from the JSON of `_packed`."""
    if isinstance(value, list):
        return [_unpacked(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "float":
            return struct.unpack(">d", bytes.fromhex(content))[0]
        case "bytes":
            return bytes.fromhex(content)
        case "tuple":
            return tuple(_unpacked(item, tensors) for item in content)
        case "dict":
            return {key: _unpacked(item, tensors) for key, item in content}
        case _:
            return tensors[content]
