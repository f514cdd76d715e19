"""The signature of a model: a digest of the names, shapes and dtypes of its tensors."""

import hashlib
import math
import struct
from collections.abc import Sequence

from unstale_proto import limits
from unstale_proto.messages import TensorSpec


def digest(tensors: Sequence[TensorSpec]) -> str:
    """SHA-256 in hex over the tensors in payload order, parameters before buffers (PROTOCOL.md)."""
    return hashlib.sha256(b"".join(canonical_bytes(tensor) for tensor in tensors)).hexdigest()


def canonical_bytes(tensor: TensorSpec) -> bytes:
    """One tensor in the digest, little-endian. Lengths and ranks come first, so that the bytes are unique."""
    rank = len(tensor.shape)
    return _text(tensor.name) + struct.pack(f"<I{rank}Q", rank, *tensor.shape) + _text(tensor.dtype)


def dimension(tensors: Sequence[TensorSpec]) -> int:
    """d, the number of parameters."""
    return sum(math.prod(tensor.shape) for tensor in tensors)


def payload_bytes(tensors: Sequence[TensorSpec], buffers: Sequence[TensorSpec] = (), *, extra: bool = False) -> int:
    """Bytes of a payload in float32; `extra` adds a vector as long as the parameters."""
    return limits.FLOAT_BYTES * (dimension(tensors) * (1 + extra) + dimension(buffers))


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<I", len(encoded)) + encoded
