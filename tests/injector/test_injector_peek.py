"""Fields read from a header of any bytes: never an error, and equal to `decode` if that accepts it."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstale_proto import codec, limits
from unstale_proto.codec import Glance, peek
from unstale_proto.errors import RemoteContractError
from unstale_proto.messages import Bye, Heartbeat, Hello


def header(**fields: Any) -> bytes:
    packed: bytes = msgpack.packb({"protocol": limits.PROTOCOL_VERSION, **fields})
    return packed


def test_a_hello_gives_client_and_session() -> None:
    hello = Hello(client_id=7, session="ab" * 16)
    assert peek(codec.encode(hello)) == Glance("hello", client_id=7, session="ab" * 16)


def test_missing_and_invalid_fields_are_none() -> None:
    assert peek(codec.encode(Bye())) == Glance("bye")
    assert peek(header(type="task", task_id=True, version=-1)) == Glance("task")
    assert peek(header(type="task", task_id=2**63, version="3")) == Glance("task")
    assert peek(header(type="hello", client_id=1.0, session=5)) == Glance("hello")
    assert peek(header(type="welcome", lease_s=10)) == Glance("welcome", lease_s=10)
    assert peek(header(type="welcome", lease_s=float("nan"))) == Glance("welcome")
    assert peek(header(type="welcome", lease_s=0.0)) == Glance("welcome")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        header(type="hello")[:-1],
        header(type="nothing"),
        header(type=3),
        header(),
        msgpack.packb([1, 2]),
        msgpack.packb({"protocol": 2, "type": "hello"}),
        msgpack.packb({"type": "hello"}),
        header(type="bye", reason="x" * (limits.STRING_BYTES_MAX + 1)),
        b"\x91" * 2000,
        bytes(limits.HEADER_BYTES_MAX + 1),
    ],
)
def test_an_unreadable_header_gives_no_fields(raw: bytes) -> None:
    assert peek(raw) is None


@given(st.binary(max_size=200))
def test_no_bytes_raise_an_error(raw: bytes) -> None:
    peek(raw)


@given(st.integers(0, limits.INTEGER_MAX), st.integers(0, limits.INTEGER_MAX), st.data())
def test_a_flipped_bit_raises_no_error_and_decodable_headers_are_read(
    number: int, version: int, data: st.DataObject
) -> None:
    raw = bytearray(codec.encode(Heartbeat(number=number, version=version)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    glance = peek(bytes(raw))
    try:
        message = codec.decode(bytes(raw))
    except RemoteContractError:
        return
    assert glance is not None
    assert glance.type == message.type
