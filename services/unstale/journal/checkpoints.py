"""Checkpoints: all that changes in a run, in one file of the safetensors format, written whole or not at all.

Tensors are stored as such, under their path in the state; the rest is JSON in the file's metadata, beside a checksum
of the whole file. Others can read the tensors (`safetensors.torch.load_file`); only we put the state together again.
Tensors are streamed to the file and from it, so that no second copy of the state is held.
Format: the README of huggingface/safetensors, "Format".
"""

import errno
import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from xxhash import xxh3_64

from unstale.errors import UserError
from unstale.journal.disk import (
    PART,
    DamagedError,
    NoRoomError,
    free_bytes,
    open_file,
    read_all,
    sync_folder,
    trouble,
    write_all,
)

FORMAT = "unstale-checkpoint-1"
SUFFIX = ".safetensors"
_UNSET = "0" * 16  # of the checksum, while it is computed
_HEAD = b'{"__metadata__":{"checksum":"'  # so that the checksum lies at one place in every file
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
"""By name, the widest first: in this order every tensor begins at a multiple of its width."""
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_ORDER = list(_TYPES.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """A checkpoint that is whole on disk."""

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
    """Write `00000120.safetensors` for version 120, or the file `path` of the folder, durable when this returns.

    state, about: dictionaries (of int, str, bool or None as keys), lists and tuples of tensors, numbers, texts, bytes
    and None, in one another. They must not change meanwhile. reserve_bytes: that stay free on the disk. Raises
    UserError for other values; NoRoomError, or another UserError, when it cannot be written: then no part of it is
    left.
    """
    tensors: dict[str, Tensor] = {}
    rest = {"state": _packed(dict(state), "state", tensors), "about": _packed(dict(about), "about", tensors)}
    tensors = dict(sorted(tensors.items(), key=lambda item: _ORDER.index(item[1].dtype)))
    path = path or path_of(folder, version)
    part = path.with_name(f".{path.name}{PART}")
    header = _header(tensors, rest)
    needed_bytes = len(header) + sum(tensor.nbytes for tensor in tensors.values())
    try:
        if free_bytes(folder) < needed_bytes + reserve_bytes:  # others write to the disk meanwhile
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size_bytes = _write(part, header, tensors.values())
        part.replace(path)
        sync_folder(folder)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        told = trouble("write", path, error)
        if isinstance(told, NoRoomError):
            told.needed_bytes = needed_bytes
        raise told from None
    return CheckpointFile(path=path, size_bytes=size_bytes)


def path_of(folder: Path, version: int) -> Path:
    """Where the file of a version lies."""
    return folder / f"{version:08d}{SUFFIX}"


def version_of(path: Path) -> int:
    """The version whose state a checkpoint holds, going by its name."""
    return int(path.stem)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state and what is said about it, as they were, tensors on the CPU. Raises DamagedError if they are not."""
    try:
        file = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        raise _damaged(path, "is missing") from None
    except OSError as error:
        raise trouble("read", path, error) from None
    try:
        _verify(file, path)
        return _read(file, path)
    except OSError as error:
        raise trouble("read", path, error) from None
    finally:
        os.close(file)


def read_at(path: Path, seq: int) -> dict[str, Any]:
    """The state of a checkpoint.

    Args:
        path: Of the file.
        seq: Number of the last event that it covers.

    Raises:
        DamagedError: The file is not whole, or is another checkpoint, such as an older one under this name.
    """
    state, about = read(path)
    if about.get("seq") != seq:
        raise _damaged(path, f"covers event {about.get('seq')}, not {seq} as run.db says")
    return state


# --- the file ---


def _header(tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> bytearray:
    """The first part of the file: the length of the JSON that follows, padded to a multiple of 8 bytes."""
    entries: dict[str, Any] = {
        "__metadata__": {"checksum": _UNSET, "format": FORMAT, "content": json.dumps(rest)}
    }
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = bytearray(struct.pack("<Q", len(text)) + text)
    assert header[8:_CHECKSUM_AT] == _HEAD
    return header


def _write(part: Path, header: bytearray, tensors: Iterable[Tensor]) -> int:
    file = open_file(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        checksum = xxh3_64()
        offset = 0
        for data in _contents(header, tensors):
            checksum.update(data)
            write_all(file, data, offset)
            offset += len(data)
        write_all(file, memoryview(checksum.hexdigest().encode()), _CHECKSUM_AT)
        os.fsync(file)
    finally:
        os.close(file)
    return offset


def _contents(header: bytearray, tensors: Iterable[Tensor]) -> Iterator[memoryview]:
    yield memoryview(header)
    for tensor in tensors:
        yield _bytes(tensor.detach().cpu().contiguous())


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a tensor on the CPU that is contiguous."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _verify(file: int, path: Path) -> None:
    """Raise DamagedError unless every byte is as it was written."""
    size_bytes = os.fstat(file).st_size
    chunk = memoryview(bytearray(min(_CHUNK_BYTES, max(size_bytes, _CHECKSUM_AT + len(_UNSET)))))
    stated = b""
    checksum = xxh3_64()
    for offset in range(0, max(size_bytes, 1), _CHUNK_BYTES):
        filled = chunk[: read_all(file, chunk, offset)]
        if offset == 0:
            where = slice(_CHECKSUM_AT, _CHECKSUM_AT + len(_UNSET))
            stated = bytes(filled[where])
            if bytes(filled[8:_CHECKSUM_AT]) != _HEAD or len(stated) < len(_UNSET):
                raise _damaged(path, "does not begin as a checkpoint does")
            filled[where] = _UNSET.encode()
        checksum.update(filled)
    if checksum.hexdigest().encode() != stated:
        raise _damaged(
            path, f"has another checksum than the {stated.decode(errors='replace')} it was written with"
        )


def _read(file: int, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """From a file that was verified."""
    size = bytearray(8)
    read_all(file, memoryview(size), 0)
    text = bytearray(struct.unpack("<Q", size)[0])
    read_all(file, memoryview(text), 8)
    entries = json.loads(text)
    metadata = entries.pop("__metadata__")
    if metadata["format"] != FORMAT:
        raise UserError(
            f"{path} has the format {metadata['format']!r}, expected {FORMAT!r}; go on with the version of unstale "
            "that wrote it"
        )
    tensors = {}
    for name, entry in entries.items():
        tensor = torch.empty(entry["shape"], dtype=_TYPES[entry["dtype"]])
        read_all(file, _bytes(tensor), 8 + len(text) + entry["data_offsets"][0])
        tensors[name] = tensor
    content = json.loads(metadata["content"])
    return _unpacked(content["state"], tensors), _unpacked(content["about"], tensors)


def _damaged(path: Path, what: str) -> DamagedError:
    return DamagedError(f"checkpoint {path} {what}; put it back from a copy, or go on from an older one")


# --- values as JSON ---


def _packed(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON, its tensors put into `tensors`. What JSON does not know stands in an object with one key that
    says what it is. name: the path to the value."""
    kind = type(value)
    if kind in _SCALARS:
        return _packed_scalar(value)
    if kind is list or kind is tuple:
        items = [_packed(item, f"{name}.{place}", tensors) for place, item in enumerate(value)]
        return items if kind is list else {"tuple": items}
    if kind is dict:
        return {
            "dict": [
                [_key(key, name), _packed(item, f"{name}.{key}", tensors)] for key, item in value.items()
            ]
        }
    if isinstance(value, Tensor) and value.dtype in _NAMES:
        while name in tensors:  # {1: ..., "1": ...}
            name += "'"
        tensors[name] = value
        return {"tensor": name}
    what = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else f"a {kind.__name__}"
    raise UserError(
        f"{name} is {what}, expected tensors, numbers, texts, bytes, None, and dictionaries, lists and tuples of them; "
        "change what `state_dict` gives"
    )


_SCALARS = (bool, int, str, type(None), float, bytes)


def _packed_scalar(value: bool | float | str | bytes | None) -> Any:
    """One of `_SCALARS` as JSON."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": struct.pack(">d", value).hex()}
    return value


def _key(key: Any, name: str) -> Any:
    if type(key) not in (bool, int, str, type(None)):
        raise UserError(f"key {key!r} of {name} is a {type(key).__name__}, expected a text or a whole number")
    return key


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What was `_packed`."""
    if isinstance(value, list):
        return [_unpacked(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((what, content),) = value.items()
    match what:
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
