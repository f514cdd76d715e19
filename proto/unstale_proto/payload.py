"""Splits payloads into frames, and checks frames, without a copy."""

from collections.abc import Sequence

from unstale_proto import limits
from unstale_proto.errors import Reason, RemoteContractError


def split(payload: memoryview) -> list[memoryview]:
    """Split a payload (format "B") into views of FRAME_BYTES_MAX, the last one shorter."""
    assert payload.format == "B"
    assert len(payload) % limits.FLOAT_BYTES == 0
    assert 0 < len(payload) <= limits.PAYLOAD_BYTES_MAX
    return [payload[start : start + limits.FRAME_BYTES_MAX] for start in range(0, len(payload), limits.FRAME_BYTES_MAX)]


def check(frame_bytes: Sequence[int], payload_bytes: int) -> None:
    """Check the sizes of received frames, split between any two numbers. Raises RemoteContractError(WRONG_SIZE)."""
    if len(frame_bytes) > limits.FRAMES_MAX:
        raise _wrong_size(f"{len(frame_bytes)} payload frames, expected at most {limits.FRAMES_MAX}")
    for index, size in enumerate(frame_bytes):
        if not 0 < size <= limits.FRAME_BYTES_MAX or size % limits.FLOAT_BYTES:
            raise _wrong_size(
                f"payload frame {index} is {size} bytes, "
                f"expected a multiple of {limits.FLOAT_BYTES} up to {limits.FRAME_BYTES_MAX}"
            )
    total = sum(frame_bytes)
    if total != payload_bytes:
        raise _wrong_size(f"the payload is {total} bytes, the header says {payload_bytes}")


def _wrong_size(message: str) -> RemoteContractError:
    return RemoteContractError(Reason.WRONG_SIZE, message)
