"""Encodes and decodes headers: msgpack under explicit limits, and validation into frozen types."""

from collections.abc import Callable
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

TYPES: dict[str, type[Message]] = {
    message.type: message for message in (Hello, Welcome, Task, Update, Ack, Heartbeat, Bye, Stop, Error, Chunk, Credit)
}

# The core of `model_validate`; without its options `decode` takes a seventh less time.
_VALIDATE: dict[str, Callable[[Any], Message]] = {
    name: message.__pydantic_validator__.validate_python for name, message in TYPES.items()
}

QUOTE_CHARACTERS_MAX = 40  # of the other side's text in an error message


def encode(message: Message) -> bytes:
    """Encode a header frame, with the fields in declared order.

    Raises ValueError for more than HEADER_BYTES_MAX bytes, as a `welcome` with very many tensors has.
    """
    header: bytes = msgpack.packb(_header(message), default=_inner_fields)
    if len(header) > limits.HEADER_BYTES_MAX:
        raise ValueError(
            f"a {message.type!r} header of {len(header)} bytes, expected at most {limits.HEADER_BYTES_MAX}"
        )
    return header


class Prepared:
    """Encodes headers that differ in a few integers, several times as fast as `encode`, and with the same bytes.

    message: a template without nested models. One thread.
    """

    def __init__(self, message: Message) -> None:
        self._fields = _header(message)
        self._pack = msgpack.Packer().pack  # reuses its memory

    def header(self, **numbers: int) -> bytes:
        """numbers: values by field, not validated."""
        fields = self._fields | numbers
        assert len(fields) == len(self._fields), numbers
        header: bytes = self._pack(fields)
        return header


def decode(header: bytes | memoryview) -> Message:
    """Decode a header frame. Raises RemoteContractError for any other bytes."""
    if len(header) > limits.HEADER_BYTES_MAX:
        raise RemoteContractError(
            Reason.HEADER_TOO_LARGE, f"the header is {len(header)} bytes, expected at most {limits.HEADER_BYTES_MAX}"
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
    validate = _VALIDATE.get(name)
    if validate is None:
        raise RemoteContractError(
            Reason.UNKNOWN_TYPE,
            f"type {name[:QUOTE_CHARACTERS_MAX]!r}, expected one of {', '.join(TYPES)}",
            refused=name[: limits.NAME_MAX] or None,
        )
    try:
        return validate(fields)
    except ValidationError as error:
        raise _malformed(f"{name}: {_first_problem(error)}", refused=name) from error


class Glance(NamedTuple):
    """A few fields of a header; None if absent or invalid."""

    type: str
    client_id: int | None = None
    session: str | None = None
    task_id: int | None = None
    version: int | None = None
    lease_s: float | None = None


def peek(header: bytes | memoryview) -> Glance | None:
    """Read a few fields of a header, several times as fast as `decode`; None for an invalid header."""
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


def _header(message: Message) -> dict[str, Any]:
    assert TYPES[message.type] is type(message)
    return {"protocol": limits.PROTOCOL_VERSION, "type": message.type, **_fields(message)}


def _fields(message: BaseModel) -> dict[str, Any]:
    return {name: value for name, value in vars(message).items() if value is not None}


def _inner_fields(part: BaseModel) -> dict[str, Any]:
    return _fields(part) | (part.__pydantic_extra__ or {})


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
    # Of a map with any keys the key is a step, and a second one, `[key]`, says that it is wrong itself.
    field = ".".join(str(step)[:QUOTE_CHARACTERS_MAX] for step in first["loc"] if step != "[key]")
    return f"field {field!r}: {first['msg']}" if field else first["msg"]


def _malformed(message: str, refused: str | None = None) -> RemoteContractError:
    return RemoteContractError(Reason.MALFORMED_HEADER, message[: limits.TEXT_MAX], refused)
