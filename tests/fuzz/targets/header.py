"""The codec, and the checks of payload and model: bytes in, a message or the contract's error out."""

import re
from collections.abc import Callable, Hashable

from fuzz import headers
from fuzz.choices import Choices
from unstale_proto import codec, limits, payload, signature
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Error, Message, Welcome

Note = Callable[[Hashable], None]

DECODING_REASONS = {Reason.MALFORMED_HEADER, Reason.HEADER_TOO_LARGE, Reason.UNKNOWN_TYPE, Reason.WRONG_PROTOCOL}
DIGITS = re.compile(r"\d+")  # a mistake at another index of an array is the same mistake
PAYLOAD = memoryview(bytes(2 * limits.FRAME_BYTES_MAX + 8))  # three frames, if all were sent
SIZES = (0, 1, 3, 4, 8, 4096, limits.FRAME_BYTES_MAX - 4, limits.FRAME_BYTES_MAX, limits.FRAME_BYTES_MAX + 4, -4, 2**63)


def run(data: bytes, note: Note) -> None:
    choices = Choices(data)
    match choices.number(8):
        case 0 | 1 | 2:
            check(choices.rest(), note)
        case 3:
            check_frames(choices, note)
        case 4:
            check(headers.damaged(headers.changed(headers.golden(choices), choices), choices), note)
        case _:
            check(headers.changed(headers.golden(choices), choices), note)


def check(header: bytes, note: Note) -> None:
    """Decode it, and encode the result again."""
    glance = codec.peek(header)
    try:
        message = codec.decode(memoryview(header))
    except RemoteContractError as error:
        check_refused(error, note)
        return
    assert glance is not None and glance.type == message.type
    for field in glance._fields[1:]:
        if field in type(message).model_fields:
            assert getattr(glance, field) == getattr(message, field), field
    note(message.type)
    note(("read", message.type, tuple(sorted(message.model_fields_set))))
    check_encoding(message)
    if isinstance(message, Welcome):
        check_model(message)


def check_refused(error: RemoteContractError, note: Note) -> None:
    """Every refusal can be answered."""
    assert error.reason in DECODING_REASONS, error.reason
    answer = Error(reason=error.reason, message=str(error))
    assert codec.decode(codec.encode(answer)) == answer
    note(error.reason)
    malformed = error.reason is Reason.MALFORMED_HEADER
    note(("refused", error.reason, DIGITS.sub("", str(error)) if malformed else ""))


def check_encoding(message: Message) -> None:
    try:
        header = codec.encode(message)
    except ValueError:  # only at the bound of a header: with every default encoded
        assert isinstance(message, Welcome), message
        return
    again = codec.decode(header)
    assert again == message, (again, message)
    assert codec.encode(again) == header


def check_model(welcome: Welcome) -> None:
    """The signature distinguishes any two models; a payload has space for every number."""
    tensors, buffers = welcome.tensors, welcome.buffers or ()
    digest = signature.digest(tensors)
    assert len(digest) == 64
    assert (digest == signature.digest(buffers)) == (tensors == buffers)
    assert signature.digest((*tensors, *buffers)) != digest or not buffers
    without = signature.payload_bytes(tensors, buffers)
    assert without >= limits.FLOAT_BYTES * len(tensors)
    assert without < signature.payload_bytes(tensors, buffers, extra=True) <= 2 * without


def check_frames(choices: Choices, note: Note) -> None:
    """Accepted frames contain whole numbers, as many as in the header; a split by the target is accepted."""
    note("frames")
    sizes = [choices.of(SIZES) for _ in range(choices.number(8))] * choices.of((1, 1, 1, 5000))
    named = choices.of((sum(sizes), *SIZES))
    try:
        payload.check(sizes, named)
    except RemoteContractError as error:
        note(("frames", error.reason, DIGITS.sub("", str(error))))
    else:
        assert sum(sizes) == named <= limits.PAYLOAD_BYTES_MAX
        assert all(0 < size <= limits.FRAME_BYTES_MAX and size % limits.FLOAT_BYTES == 0 for size in sizes)
        note(("frames taken", min(len(sizes), 8)))
    count = limits.FLOAT_BYTES * (1 + choices.number(len(PAYLOAD) // limits.FLOAT_BYTES))
    frames = payload.split(PAYLOAD[:count])
    payload.check([len(frame) for frame in frames], count)
