"""The end of a client with its run. Source: PROTOCOL.md 4.5."""

import threading
from collections.abc import Iterator

import pytest
import zmq

from support.running import PATIENCE_S, small
from support.wire import welcome
from unstale.client.service import ClientProcess
from unstale.client.workspace import training_context_of
from unstale_proto import codec
from unstale_proto.messages import Bye, Heartbeat, Message, Stop

pytestmark = pytest.mark.network

SETTINGS = small(clients=2)


class EndingServer:
    """A scripted server of two clients in one process."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        self.process = ClientProcess(
            server=f"tcp://127.0.0.1:{port}",
            client_ids=range(2),
            prepare=lambda received: training_context_of(received, SETTINGS),
            heartbeat_s=0.2,
            linger_s=PATIENCE_S,
        )
        self.thread = threading.Thread(target=self.process.run, daemon=True)
        self.thread.start()
        self.routes = [self.hear("hello") for _ in range(2)]
        for client_id, route in enumerate(self.routes):
            greeting = welcome(clients=2, client_id=client_id).model_copy(update={"heartbeat_s": 0.1})
            self.say(route, greeting)
        while {self.hear("heartbeat"), self.hear("heartbeat")} != set(self.routes):
            pass  # both are members

    def hear(self, kind: str) -> bytes:
        """Wait for a message of this type; returns its route."""
        assert self.socket.poll(1000 * PATIENCE_S)
        route, header, *_ = self.socket.recv_multipart()
        return route if codec.decode(header).type == kind else self.hear(kind)

    def say(self, route: bytes, message: Message) -> None:
        self.socket.send_multipart([route, codec.encode(message)])

    def has_ended(self) -> bool:
        self.thread.join(PATIENCE_S / 2)  # far below its timeout
        return not self.thread.is_alive()


@pytest.fixture
def server() -> Iterator[EndingServer]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        ending = EndingServer(socket)
        yield ending
        ending.process.stop()
        for route in ending.routes:
            ending.say(route, Bye())
        ending.thread.join(PATIENCE_S)


def test_a_client_reads_until_its_goodbye_is_answered(server: EndingServer) -> None:
    for route in server.routes:
        server.say(route, Stop(reason="finished", version=1))
    assert {server.hear("bye"), server.hear("bye")} == set(server.routes)
    for route in server.routes:
        assert server.thread.is_alive()
        server.say(route, Heartbeat(number=0, version=1))  # messages in transit
        server.say(route, Stop(reason="finished", version=1))
        server.say(route, Bye())
    assert server.has_ended()


def test_a_client_that_the_operator_stops_waits_for_no_answer(server: EndingServer) -> None:
    server.process.stop()
    assert {server.hear("bye"), server.hear("bye")} == set(server.routes)
    assert server.has_ended()
