"""Wrong or odd messages of clients, and their effects on later messages, through real sockets.

Each way to be wrong by itself is in test_every_reason.py.
Source: proto/PROTOCOL.md#2-header; proto/PROTOCOL.md#6-reasons
"""

from collections.abc import Iterator

import msgpack
import pytest

from support.running import RunningServer, small
from support.scrape import sample
from support.wire import RawClient, update_of
from unstale_proto import codec
from unstale_proto.errors import Reason
from unstale_proto.messages import Bye, Error, Heartbeat, Hello, Task, Welcome

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


def test_a_welcome_from_a_client_is_of_the_wrong_direction(server: RunningServer) -> None:
    with RawClient(server.address, 0) as client:
        client.say(client.join())
        assert client.hear(Error).reason is Reason.UNEXPECTED_TYPE
        assert sample(server.http, REFUSED, reason=Reason.UNEXPECTED_TYPE) == 1


def test_a_client_id_out_of_range_makes_its_connection_nobodys(server: RunningServer) -> None:
    with RawClient(server.address, 2) as client:
        client.say(Hello(client_id=2, session=client.session))
        error = client.hear(Error)
        assert error.reason is Reason.UNKNOWN_CLIENT
        assert "client id 2" in error.message
        client.say(Heartbeat(number=1, version=0))  # it is bound to no client still
        assert client.hear(Error).reason is Reason.HELLO_FIRST


def test_every_message_before_hello_is_refused(server: RunningServer) -> None:
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
        client.say(Error(reason=Reason.NON_FINITE, task_id=99))  # a task that no client has
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
