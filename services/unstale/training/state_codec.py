"""The state that an app keeps for a client, as one vector: nests of tensors, numbers and strings.

The vector has the bytes of a length (8, little-endian), of JSON, and of each tensor.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes; of the largest element
_PLAIN = (bool, int, float, str, type(None))
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def pack(nest: Any) -> Tensor:
    """The vector of a nest, float32 on the host. Raises ValueError for a nest with other values."""
    blobs: list[bytes] = []
    try:
        text = json.dumps(_plain(nest, "state", blobs)).encode()
    except RecursionError:
        raise ValueError("state contains itself, or is too deep") from None
    except (RuntimeError, NotImplementedError) as error:
        raise ValueError(f"state has a tensor whose values cannot be read ({' '.join(str(error).split())})") from None
    head = len(text).to_bytes(8, "little") + text
    whole = b"".join(part + bytes(-len(part) % _ALIGNMENT) for part in (head, *blobs))
    return torch.frombuffer(bytearray(whole), dtype=torch.float32)


def unpack(vector: Tensor) -> Any:
    """The nest of a vector. Its tensors are copies, on the host."""
    whole = vector.numpy().tobytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    return _nest(json.loads(whole[8:end]), memoryview(whole)[end + -end % _ALIGNMENT :])


def _plain(nest: Any, where: str, blobs: list[bytes]) -> Any:
    """JSON of a nest. Appends the bytes of its tensors to `blobs`. where: of the nest, for messages."""
    if isinstance(nest, np.generic):
        nest = nest.item()
    if isinstance(nest, _PLAIN):
        return nest
    if isinstance(nest, Tensor):
        return _tensor(nest, where, blobs)
    if isinstance(nest, Mapping):
        return {"map": [[_key(key, where), _plain(value, f"{where}[{key!r}]", blobs)] for key, value in nest.items()]}
    if isinstance(nest, tuple | list):
        parts = [_plain(value, f"{where}[{index}]", blobs) for index, value in enumerate(nest)]
        return parts if isinstance(nest, list) else {"tuple": parts}
    raise ValueError(
        f"{where} is of type {type(nest).__name__}, expected tensors, numbers, strings, and lists, tuples and mappings "
        "of them"
    )


def _key(key: Any, where: str) -> Any:
    """A key of a mapping, for JSON."""
    if not isinstance(key, _PLAIN):
        raise ValueError(f"{where} has a key of type {type(key).__name__}, expected strings and numbers")
    return key


def _tensor(tensor: Tensor, where: str, blobs: list[bytes]) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"{where} is a sparse or quantized tensor, expected a dense one")
    flat = tensor.detach().cpu().resolve_conj().contiguous().reshape(-1)
    blob = flat.view(torch.uint8).numpy().tobytes()
    start = sum(len(other) + -len(other) % _ALIGNMENT for other in blobs)
    blobs.append(blob)
    return {"tensor": [dtype, list(tensor.shape), start, len(blob)]}


def _nest(plain: Any, blobs: memoryview) -> Any:
    if isinstance(plain, list):
        return [_nest(part, blobs) for part in plain]
    if not isinstance(plain, dict):
        return plain
    if "tuple" in plain:
        return tuple(_nest(part, blobs) for part in plain["tuple"])
    if "map" in plain:
        return {key: _nest(value, blobs) for key, value in plain["map"]}
    dtype, shape, start, size = plain["tensor"]
    if not size:
        return torch.empty(shape, dtype=_DTYPES[dtype])
    return torch.frombuffer(bytearray(blobs[start : start + size]), dtype=_DTYPES[dtype]).reshape(shape)
