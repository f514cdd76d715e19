"""Checks of one update: its payload, and that it is resent byte for byte."""

import math

import numpy as np

from unstale.client_conformance.peer import Received
from unstale.client_conformance.rules import require
from unstale_proto import payload
from unstale_proto.errors import RemoteContractError


def check_payload(update: Received, payload_bytes: int) -> None:
    """Check frames and numbers of a payload in float32."""
    try:
        payload.check([len(frame) for frame in update.frames], payload_bytes)
    except RemoteContractError as error:
        require(False, f"{payload_bytes} bytes in frames of section 9", f"{error.reason}: {error}")
    numbers = np.frombuffer(update.payload, "<f4")
    require(bool(np.isfinite(numbers).all()), "finite numbers", "NaN or infinity")
    norm = math.sqrt(float(np.square(numbers, dtype=np.float64).sum()))
    require(norm > 0, "an update that is not only zeros", "zeros only")


def check_same(first: Received, again: Received) -> None:
    require(again.header == first.header, "the header of the update again, byte for byte", repr(again.message))
    require(again.payload == first.payload, "the payload of the update again, byte for byte", "another payload")
