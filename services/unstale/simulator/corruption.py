"""Messages and models whose bits were flipped in transit."""

import math
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch

from unstale import flat
from unstale.injector.core import damaged
from unstale.learner.versions import Version
from unstale.toxics.in_flight import InFlightMessage
from unstale_proto import codec
from unstale_proto.encodings import Encoding
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Message

M = TypeVar("M", bound=Message)


def read(message: M, frames: Sequence[memoryview], flight: InFlightMessage) -> tuple[M, list[memoryview]]:
    """Header and payload as the receiver reads them.

    Args:
        message: As it was sent.
        frames: Its payload, read-only.
        flight: The flipped bits, and the length of the header for which they were drawn.

    Raises:
        RemoteContractError: The header is no message of this type any more.
    """
    header = codec.encode(message)
    header_bits = 8 * flight.header_bytes
    in_header = [bit for bit in flight.damage if bit < min(header_bits, 8 * len(header))]
    # The header may have another length by now: the damage of the payload moves with it.
    shift = 8 * len(header) - header_bits
    in_payload = [bit + shift for bit in flight.damage if bit >= header_bits] if frames else []
    flipped, cargo = damaged(header, frames, [*in_header, *in_payload])
    received = codec.decode(flipped)
    if type(received) is not type(message):
        raise RemoteContractError(Reason.UNEXPECTED_TYPE, f"{message.type} became {received.type} on its way")
    return received, [memoryview(frame) for frame in cast(Any, cargo)]


def version(base: Version, flight: InFlightMessage, encoding: Encoding) -> Version:
    """A version whose payload arrived damaged. encoding: of the payload."""
    header_bits = 8 * flight.header_bytes
    bits = [bit - header_bits for bit in flight.damage if bit >= header_bits]
    frames: Any = encoding.frames([flat.to_bytes(part) for part in base.parts])
    if bits:
        _, frames = damaged(b"", frames, bits)
    return read_version(base, cast(Any, frames), encoding)


def read_version(base: Version, frames: Sequence[memoryview], encoding: Encoding) -> Version:
    """The version in a payload, of the shape of base; NaN if the payload cannot be read.

    From NaN training diverges, and the client gives the task back.
    """
    d, b, numbers = encoding.dimension, base.buffers_b.numel(), encoding.dimension + encoding.behind
    try:
        numbers_D = flat.from_bytes(encoding.decode(frames), numbers, base.model_d.device)
    except RemoteContractError:
        numbers_D = torch.full((numbers,), math.nan, device=base.model_d.device)
    return Version(
        model_d=numbers_D[:d],
        buffers_b=numbers_D[d : d + b] if b else base.buffers_b,
        extra_d=None if base.extra_d is None else numbers_D[d + b :],
    )
