"""How a client ends with its run. Source: PROTOCOL.md 4.5."""

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


class Ending:
    """A server that says what a test tells it to, to two clients of one process."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        self.process = ClientProcess(
            server=f"tcp://127.0.0.1:{port}",
            client_ids=range(2),
            prepare=lambda told: training_context_of(told, SETTINGS).workload,
            heartbeat_s=0.2,
            linger_s=PATIENCE_S,
        )
        self.thread = threading.Thread(target=self.process.run, daemon=True)
        self.thread.start()
        self.routes = [self.hear("hello") for _ in range(2)]
        for client_id, route in enumerate(self.routes):
            told = welcome(clients=2, client_id=client_id).model_copy(update={"heartbeat_s": 0.1})
            self.say(route, told)
        while {self.hear("heartbeat"), self.hear("heartbeat")} != set(self.routes):
            pass  # both are in the run

    def hear(self, kind: str) -> bytes:
        """Wait for a message of this type; who said it."""
        assert self.socket.poll(1000 * PATIENCE_S)
        route, header, *_ = self.socket.recv_multipart()
        return route if codec.decode(header).type == kind else self.hear(kind)

    def say(self, route: bytes, message: Message) -> None:
        self.socket.send_multipart([route, codec.encode(message)])

    def has_ended(self) -> bool:
        self.thread.join(PATIENCE_S / 2)  # much less than it would wait
        return not self.thread.is_alive()


@pytest.fixture
def server() -> Iterator[Ending]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        ending = Ending(socket)
        yield ending
        ending.process.stop()
        for route in ending.routes:
            ending.say(route, Bye())
        ending.thread.join(PATIENCE_S)


def test_a_client_reads_on_until_its_goodbye_is_answered(server: Ending) -> None:
    for route in server.routes:
        server.say(route, Stop(reason="finished", version=1))
    assert {server.hear("bye"), server.hear("bye")} == set(server.routes)
    for route in server.routes:
        assert server.thread.is_alive()
        server.say(route, Heartbeat(number=0, version=1))  # what was under way
        server.say(route, Stop(reason="finished", version=1))
        server.say(route, Bye())
    assert server.has_ended()


def test_a_client_that_is_told_to_end_waits_for_no_answer(server: Ending) -> None:
    server.process.stop()
    assert {server.hear("bye"), server.hear("bye")} == set(server.routes)
    assert server.has_ended()
