"""A message of each type is lost between real sockets, and the run continues. Source: PROTOCOL.md 4 and 5."""

import threading
from typing import Any

import pytest

from support.proxy import Proxy
from support.running import PATIENCE_S, RunningServer, small
from unstale.client.service import ClientProcess
from unstale.client.workspace import training_context_of
from unstale.metrics.progress import Outcome
from unstale_client import session
from unstale_proto.messages import Heartbeat, Message, Task

pytestmark = pytest.mark.network

LOSSES = {
    "hello": ("hello", True),
    "welcome": ("welcome", False),
    "task": ("task", False),
    "update": ("update", True),
    "ack": ("ack", False),
    "heartbeat": ("heartbeat", True),
    "answer to a heartbeat": ("heartbeat", False),
    "stop": ("stop", False),
    "bye": ("bye", True),
}


class Losing:
    """Swallows the first messages of a type in one direction, and remembers what passed."""

    def __init__(self, kind: str, up: bool, count: int) -> None:
        self.left = count
        self.passed: list[Message] = []
        self._kind, self._up = kind, up

    def __call__(self, message: Message, up: bool) -> bool:
        if self.left and (message.type, up) == (self._kind, self._up):
            self.left -= 1
            return True
        self.passed.append(message)
        return False


TASK_S = 0.2  # four heartbeats; at least one leaves before each update, however busy this machine is


def run_through(losing: Losing, **changes: Any) -> Outcome:
    """A run of two clients, through something that loses messages."""
    settings = small(
        rounds=4,
        trigger={"name": "sync"},
        policy={"name": "fedavg"},
        server={"heartbeat_s": 0.05, "lease_s": PATIENCE_S, "linger_s": PATIENCE_S, **changes},
    )
    with RunningServer(settings) as server, Proxy(server.address, losing) as proxy:
        process = ClientProcess(
            server=proxy.address,
            client_ids=range(2),
            prepare=lambda welcome: training_context_of(welcome, settings),
            heartbeat_s=60.0,
            linger_s=1.0,
            durations=lambda welcome: lambda client_id, number, steps: TASK_S,
        )
        clients = threading.Thread(target=process.run, daemon=True)
        clients.start()
        outcome = server.end()
        clients.join(PATIENCE_S)
        assert not clients.is_alive(), "the clients do not end"
    return outcome


@pytest.mark.parametrize("what", LOSSES)
def test_a_run_finishes_though_messages_are_lost(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "GREETING_S", 0.2)  # so that a lost hello is repeated soon
    kind, up = LOSSES[what]
    losing = Losing(kind, up, count=2 if kind in ("bye", "stop") else 3)
    # A goodbye that is lost is waited for in vain.
    outcome = run_through(losing, **({"linger_s": 0.5} if kind == "bye" else {}))
    assert losing.left == 0
    assert (outcome.reason, outcome.versions) == ("finished", 4)
    assert outcome.updates["accepted"] == 2 * 4  # each counts once, and none is missing
    assert outcome.updates["rejected"] == 0


def test_a_lost_task_is_resent_when_a_heartbeat_proves_it() -> None:
    losing = Losing("task", False, count=1)
    outcome = run_through(losing)
    assert outcome.updates == {"accepted": 8, "duplicate": 0, "rejected": 0}
    tasks = [message for message in losing.passed if isinstance(message, Task)]
    assert [task.version for task in tasks] == [0, 0, 1, 1, 2, 2, 3, 3]
    again = tasks[1]
    assert again.number == 1  # the client's second, though it never had a first
    before = losing.passed[: losing.passed.index(again)]
    said = [beat for beat in before if isinstance(beat, Heartbeat) and beat.newest_task == 0]
    assert said[-1].heard is not None
