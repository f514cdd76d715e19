"""A client process is killed, and the same command resumes its work. See proto/PROTOCOL.md#5-exactly-once."""

import queue
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import zmq

from support.processes import START_S, Process
from support.proxy import Proxy
from support.running import RunningServer, small
from unstale.config.workspace import make_workspace
from unstale.flat import to_bytes
from unstale.metrics.progress import Outcome
from unstale.server.welcome import welcome
from unstale_proto import codec
from unstale_proto.messages import Ack, Bye, Hello, Message, Stop, Task, Update

pytestmark = [pytest.mark.network, pytest.mark.slow]

M = TypeVar("M", bound=Message)

PATIENT = {"heartbeat_s": 0.2, "lease_s": 10 * START_S, "linger_s": 1.0}  # a new process takes its time


def left_in(folder: Path) -> set[str]:
    return {path.name for path in (folder / "unstale-client").iterdir()} - {"lock", "starts"}


# -------------------------------------------------------------------------------------------- the same bytes, once more


class FakeServer:
    """A ROUTER that sends a test's messages to the last sender."""

    def __init__(self) -> None:
        self._socket = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 1000)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"
        self._route = b""

    def hear(self, kind: type[M]) -> tuple[M, list[bytes]]:
        """The next message of this type, with header and payload as bytes; others are passed over."""
        while True:
            assert self._socket.poll(START_S * 1000), f"no {kind.type} comes"
            self._route, *frames = self._socket.recv_multipart()
            message = codec.decode(frames[0])
            if isinstance(message, kind):
                return message, frames

    def say(self, message: Message, *frames: bytes | memoryview) -> None:
        self._socket.send_multipart([self._route, codec.encode(message), *frames])

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    made = FakeServer()
    yield made
    made.close()


def test_an_unacknowledged_update_is_resent_byte_for_byte_under_its_task(tmp_path: Path, fake: FakeServer) -> None:
    settings = small(clients=1, server=PATIENT)
    model = make_workspace(settings).model
    said = welcome(settings, model, extra=False)
    payload = to_bytes(model.parameters_d)
    task = Task(
        task_id=12,
        number=3,
        version=2,
        learning_rate=0.5,
        signature=said.signature,
        payload_bytes=len(payload),
        run_id=said.run_id,
    )
    command = ("client", "--server", fake.address)
    with Process(*command, folder=tmp_path) as first:
        hello, _ = fake.hear(Hello)
        assert hello.holding == ()
        fake.say(said)
        fake.say(task, payload)
        update, came_first = fake.hear(Update)
        assert update.task_id == 12
        first.process.send_signal(signal.SIGKILL)
        assert first.end() == -signal.SIGKILL
    assert left_in(tmp_path) == {"0-3.update"}
    with Process(*command, folder=tmp_path) as second:
        again, _ = fake.hear(Hello)
        assert again.session != hello.session
        assert again.holding == (12,)
        fake.say(said)
        _, came_again = fake.hear(Update)
        assert came_again == came_first
        fake.say(Ack(task_id=12, outcome="duplicate", first_outcome="accepted"))
        fake.say(Stop(reason="finished", version=3))
        fake.hear(Bye)
        assert second.end() == 0
        assert "unacknowledged updates of an earlier process, sent again: 1" in second.errors()
    assert left_in(tmp_path) == set()


# -------------------------------------------------------------------------------------------------------- a run resumes


@dataclass
class Losing:
    """Drops one kind of message of one direction from the n-th update on, until it is stopped."""

    kind: str
    up: bool
    update: int
    seen: int = 0
    ended: bool = False

    def __post_init__(self) -> None:
        self.swallowed: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def __call__(self, message: Message, up: bool) -> bool:
        self.seen += message.type == "update" and up
        swallows = not self.ended and self.seen >= self.update and (message.type, up) == (self.kind, self.up)
        if swallows:
            self.swallowed.put(message)
        return swallows


SCAFFOLD: dict[str, Any] = {
    "clients": 1,
    "rounds": 6,
    "policy": {"name": "scaffold"},
    "training": {"name": "scaffold", "learning_rate": 0.1, "steps": 2, "batch_size": 8},
    "server": PATIENT,
}


def undisturbed() -> Outcome:
    with RunningServer(small(**SCAFFOLD)) as server, Process("client", "--server", server.address) as client:
        outcome = server.end(START_S)
        assert client.end() == 0
    return outcome


def killed(folder: Path, losing: Losing) -> tuple[Outcome, set[str]]:
    """A run whose client is killed at the first message that is lost, and started again. The files in between."""
    with RunningServer(small(**SCAFFOLD)) as server, Proxy(server.address, losing) as proxy:
        command = ("client", "--server", proxy.address)
        with Process(*command, folder=folder) as first:
            losing.swallowed.get(timeout=START_S)
            first.process.send_signal(signal.SIGKILL)
            first.end()
        files = left_in(folder)
        losing.ended = True
        with Process(*command, folder=folder) as second:
            outcome = server.end(START_S)
            assert second.end() == 0
    return outcome, files


def test_a_client_that_is_killed_before_its_update_arrives_changes_no_bit_of_the_run(tmp_path: Path) -> None:
    outcome, files = killed(tmp_path, Losing("update", up=True, update=4))
    assert files == {"0.state", "0-3.update"}  # the state after the first three, and the fourth
    assert outcome.updates == {"accepted": 6, "duplicate": 0, "rejected": 0}
    assert outcome.model_digest == undisturbed().model_digest
    assert left_in(tmp_path) == set()


def test_an_update_whose_verdict_was_lost_with_its_client_counts_once(tmp_path: Path) -> None:
    outcome, files = killed(tmp_path, Losing("ack", up=False, update=4))
    assert "0-3.update" in files
    assert (outcome.reason, outcome.versions) == ("finished", 6)
    assert outcome.updates["accepted"] == 6
    assert outcome.updates["duplicate"] >= 1
    assert left_in(tmp_path) == set()
