"""Headers that break the wire contract, each through a real socket. Source: design.md 7, PROTOCOL.md 2 and 6.

Each has a reason from the closed list, is counted by it, is answered to the sender, and leaves all state as it was.
"""

from collections.abc import Iterator

import msgpack
import pytest

from support.running import RunningServer, small
from support.scrape import sample
from support.wire import RawClient, update_of
from unstale_proto import codec
from unstale_proto.errors import Reason
from unstale_proto.limits import HEADER_BYTES_MAX
from unstale_proto.messages import Ack, Bye, Error, Heartbeat, Hello, Stop, Task, Welcome

pytestmark = pytest.mark.network

REFUSED = "unstale_messages_refused_total"
BEAT = codec.encode(Heartbeat(number=1, version=0))
TASK = Task(task_id=1, number=0, version=0, learning_rate=0.1, signature="0" * 64, payload_bytes=4)


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with RunningServer(small()) as running:
        yield running


def packed(**fields: object) -> bytes:
    header: bytes = msgpack.packb({"protocol": 1, **fields})
    return header


HEADERS: dict[str, tuple[bytes, Reason]] = {
    "noise": (b"\xc1\xc1\xc1", Reason.MALFORMED_HEADER),
    "nothing at all": (b"", Reason.MALFORMED_HEADER),
    "cut short": (BEAT[:-1], Reason.MALFORMED_HEADER),
    "bytes after the map": (BEAT + b"\x00", Reason.MALFORMED_HEADER),
    "no map": (msgpack.packb([1, 2]), Reason.MALFORMED_HEADER),
    "a field is missing": (packed(type="heartbeat", number=1), Reason.MALFORMED_HEADER),
    "a field is out of range": (packed(type="heartbeat", number=-1, version=0), Reason.MALFORMED_HEADER),
    "a long text": (packed(type="bye", reason="x" * 1001), Reason.MALFORMED_HEADER),
    "too large": (b"\x00" * (HEADER_BYTES_MAX + 1), Reason.HEADER_TOO_LARGE),
    "an unknown type": (packed(type="gossip"), Reason.UNKNOWN_TYPE),
    "an unknown type with a long name": (packed(type="\U0010ffff" * 900), Reason.UNKNOWN_TYPE),
    "another protocol": (msgpack.packb({"protocol": 2, "type": "heartbeat"}), Reason.WRONG_PROTOCOL),
    "the largest protocol": (msgpack.packb({"protocol": 2**64 - 1}), Reason.WRONG_PROTOCOL),
    "a task, which only a server sends": (codec.encode(TASK), Reason.UNEXPECTED_TYPE),
    "an ack, which only a server sends": (
        codec.encode(Ack(task_id=1, outcome="accepted", first_outcome="accepted")),
        Reason.UNEXPECTED_TYPE,
    ),
    "a stop, which only a server sends": (
        codec.encode(Stop(reason="finished", version=0)),
        Reason.UNEXPECTED_TYPE,
    ),
}


@pytest.mark.parametrize("wrong", HEADERS)
def test_a_wrong_header_is_answered_counted_and_changes_nothing(wrong: str, server: RunningServer) -> None:
    header, reason = HEADERS[wrong]
    with RawClient(server.address, 0) as client, RawClient(server.address, 1) as other:
        client.join()
        other.join()
        client.task()
        other.task()
        before = server.state()
        client.say_bytes(header)
        error = client.hear(Error)
        assert (error.reason, error.task_id) == (reason, None)
        assert error.message
        assert server.state() == before
        assert sample(server.http, REFUSED, reason=reason) == 1
        client.hears_nothing_before(7)  # and the connection goes on
        other.hears_nothing_before(8)  # nobody else was told anything


@pytest.mark.parametrize("field", ["loss", "learning_rate"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_refused_in_a_header(
    field: str, number: float, server: RunningServer
) -> None:
    with RawClient(server.address, 0) as client, RawClient(server.address, 1) as other:
        client.join()
        other.join()
        task, _ = client.task()
        other.task()
        before = server.state()
        fields = {**update_of(task).model_dump(), field: number}
        client.say_bytes(packed(type="update", **fields), bytes(task.payload_bytes))
        assert client.hear(Error).reason is Reason.MALFORMED_HEADER
        assert server.state() == before


def test_a_welcome_from_a_client_is_of_the_wrong_direction(server: RunningServer) -> None:
    with RawClient(server.address, 0) as client:
        client.say(client.join())
        assert client.hear(Error).reason is Reason.UNEXPECTED_TYPE
        assert sample(server.http, REFUSED, reason=Reason.UNEXPECTED_TYPE) == 1


@pytest.mark.parametrize("client_id", [2, 999_999])
def test_a_client_id_out_of_range_is_refused(client_id: int, server: RunningServer) -> None:
    before = server.state()
    with RawClient(server.address, client_id) as client:
        client.say(Hello(client_id=client_id, session=client.session))
        error = client.hear(Error)
        assert error.reason is Reason.UNKNOWN_CLIENT
        assert str(client_id) in error.message
        client.say(Heartbeat(number=1, version=0))  # it is nobody still
        assert client.hear(Error).reason is Reason.HELLO_FIRST
        assert server.state() == before
        assert sample(server.http, REFUSED, reason=Reason.UNKNOWN_CLIENT) == 1


def test_whatever_comes_before_hello_is_refused(server: RunningServer) -> None:
    before = server.state()
    with RawClient(server.address) as client:
        client.say(Bye())  # the one message that nothing answers
        for message in (Heartbeat(number=1, version=0), update_of(TASK), TASK):
            client.say(message)
            assert client.hear(Error).reason is Reason.HELLO_FIRST
        assert server.state() == before
        assert sample(server.http, REFUSED, reason=Reason.HELLO_FIRST) == 3
        assert client.join().client_id == 0  # a hello mends it


def test_after_goodbye_a_client_says_hello_first(server: RunningServer) -> None:
    with RawClient(server.address) as client:
        client.join()
        client.say(Bye())
        client.say(Heartbeat(number=1, version=0))
        assert client.hear(Error).reason is Reason.HELLO_FIRST
        assert client.join().version == 0


def test_an_error_is_never_answered(server: RunningServer) -> None:
    with RawClient(server.address) as client:
        client.say(Error(reason=Reason.UNKNOWN_TYPE))  # not even before hello
        client.say(Error(reason=Reason.NON_FINITE, task_id=1))
        client.join()
        client.say(Error(reason=Reason.UNKNOWN_TYPE, message="what was that?"))
        client.say(Error(reason=Reason.NON_FINITE, task_id=99))  # a task that nobody was given
        client.hears_nothing_before(5)


def test_payload_frames_of_what_has_none_are_ignored(server: RunningServer) -> None:
    with RawClient(server.address) as client:
        client.join()
        client.say_bytes(BEAT, b"ballast", b"")
        assert client.hear(Heartbeat).number == 1


def test_fields_that_the_server_does_not_know_are_ignored(server: RunningServer) -> None:
    with RawClient(server.address) as client:
        client.say_bytes(packed(type="hello", client_id=0, session="ab" * 16, colour="green"))
        assert client.hear(Welcome).clients == 2
