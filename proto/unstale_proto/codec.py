"""Headers to messages and back: msgpack under explicit limits, then validation into frozen types."""

from typing import Any, NamedTuple

import msgpack
from pydantic import BaseModel, ValidationError

from unstale_proto import limits
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import (
    Ack,
    Bye,
    Chunk,
    Credit,
    Error,
    Heartbeat,
    Hello,
    Message,
    Stop,
    Task,
    Update,
    Welcome,
)

# The one table of types, for both directions.
TYPES: dict[str, type[Message]] = {
    message.type: message
    for message in (Hello, Welcome, Task, Update, Ack, Heartbeat, Bye, Stop, Error, Chunk, Credit)
}

# How much of what the other side wrote an error repeats.
QUOTE_CHARACTERS_MAX = 40


def encode(message: Message) -> bytes:
    """The header frame of a message. The same message gives the same bytes: fields in declared order.

    Raises ValueError when it is over HEADER_BYTES_MAX: only a `welcome` with very many tensors can be.
    """
    assert TYPES[message.type] is type(message)
    fields = {"protocol": limits.PROTOCOL_VERSION, "type": message.type, **_fields(message)}
    header: bytes = msgpack.packb(fields, default=_fields)
    if len(header) > limits.HEADER_BYTES_MAX:
        raise ValueError(
            f"a {message.type!r} header of {len(header)} bytes, expected at most {limits.HEADER_BYTES_MAX}"
        )
    return header


def decode(header: bytes | memoryview) -> Message:
    """The message in a header frame. Raises RemoteContractError for every byte string that holds none."""
    if len(header) > limits.HEADER_BYTES_MAX:
        raise RemoteContractError(
            Reason.HEADER_TOO_LARGE,
            f"the header is {len(header)} bytes, expected at most {limits.HEADER_BYTES_MAX}",
        )
    fields = _unpack(header)
    protocol = fields.get("protocol")
    if type(protocol) is not int:  # a bool is an int to isinstance
        raise _malformed("field 'protocol' should be a whole number")
    if protocol != limits.PROTOCOL_VERSION:
        raise RemoteContractError(
            Reason.WRONG_PROTOCOL, f"protocol version {protocol}, expected {limits.PROTOCOL_VERSION}"
        )
    name = fields.get("type")
    if not isinstance(name, str):
        raise _malformed("field 'type' should be a string")
    message_type = TYPES.get(name)
    if message_type is None:
        raise RemoteContractError(
            Reason.UNKNOWN_TYPE, f"type {name[:QUOTE_CHARACTERS_MAX]!r}, expected one of {', '.join(TYPES)}"
        )
    try:
        return message_type.model_validate(fields)
    except ValidationError as error:
        raise _malformed(f"{name}: {_first_problem(error)}") from error


class Glance(NamedTuple):
    """What a header says at a glance. A field that is not there, or not as it should be, is None."""

    type: str
    client_id: int | None = None
    session: str | None = None
    task_id: int | None = None
    version: int | None = None
    lease_s: float | None = None


def peek(header: bytes | memoryview) -> Glance | None:
    """What a message is and whom it concerns, for those that only pass it on. None for what cannot be read.

    Under the limits of `decode`, and several times as fast: only the fields of a `Glance` are looked at.
    """
    if len(header) > limits.HEADER_BYTES_MAX:
        return None
    try:
        fields = _unpack(header)
    except RemoteContractError:
        return None
    name = fields.get("type")
    if fields.get("protocol") != limits.PROTOCOL_VERSION or not isinstance(name, str) or name not in TYPES:
        return None
    session = fields.get("session")
    return Glance(
        name,
        client_id=_whole_number(fields.get("client_id")),
        session=session if isinstance(session, str) else None,
        task_id=_whole_number(fields.get("task_id")),
        version=_whole_number(fields.get("version")),
        lease_s=_seconds(fields.get("lease_s")),
    )


def _whole_number(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= limits.INTEGER_MAX else None


def _seconds(value: Any) -> float | None:
    return value if type(value) in (int, float) and 0 < value <= limits.SECONDS_MAX else None


def _fields(message: BaseModel) -> dict[str, Any]:
    return {name: value for name, value in vars(message).items() if value is not None}


def _unpack(header: bytes | memoryview) -> dict[str, Any]:
    try:
        fields = msgpack.unpackb(
            header,
            raw=False,
            use_list=False,
            strict_map_key=True,
            max_str_len=limits.STRING_BYTES_MAX,
            max_array_len=limits.TENSORS_MAX,
            max_map_len=limits.MAP_ENTRIES_MAX,
            max_bin_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise _malformed(f"not msgpack within the limits: {str(error) or type(error).__name__}") from error
    if not isinstance(fields, dict):
        raise _malformed(f"the header should be a map, got {type(fields).__name__}")
    return fields


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(step) for step in first["loc"])
    return f"field {field!r}: {first['msg']}" if field else first["msg"]


def _malformed(message: str) -> RemoteContractError:
    return RemoteContractError(Reason.MALFORMED_HEADER, message[: limits.TEXT_MAX])
