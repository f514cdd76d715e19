"""Sent messages, in the bytes of `encode`. Source: PROTOCOL.md 4 and 5."""

from collections.abc import Sequence
from typing import Any

import pytest

from support.wire import RUN, welcome
from unstale.coordinator.actions import Acknowledge, Outcome, SendTask
from unstale.server.downloads import Downloads
from unstale.server.sender import Sender
from unstale.server.sessions import EncodingNegotiation, Sessions
from unstale.server.slot_scheduler import SlotScheduler
from unstale.server.transport import Delivery
from unstale_proto.codec import decode, encode
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, Hello, Task

FRAMES = [memoryview(b"\0" * 8)]


class KeptWire:
    """sent: route, header and how many frames. says: the delivery of a message."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes, int]] = []
        self.says = Delivery.SENT

    def wrap(self, frames: Sequence[memoryview]) -> Sequence[Any]:
        return frames

    def send(self, route: bytes, header: bytes, frames: Sequence[Any] = ()) -> Delivery:
        self.sent.append((route, header, len(frames)))
        return self.says


@pytest.fixture
def wire() -> KeptWire:
    return KeptWire()


@pytest.fixture
def sessions() -> Sessions:
    """Of clients 0 and 1."""
    made = Sessions(20)
    for client_id in (0, 1):
        made.admit(Hello(client_id=client_id, session=f"{client_id:032x}"), b"%d" % client_id)
    return made


@pytest.fixture
def sender(wire: KeptWire, sessions: Sessions) -> Sender:
    """A task asks client 1 for an evaluation. Models of the last round may be given."""
    scheduler = SlotScheduler(sessions.owner_of, slots=1, grace_s=1.0, chunk_bytes=8, payload_bytes=8)
    return Sender(
        transport=wire,
        sessions=sessions,
        frames={0: FRAMES},
        encoded={},
        negotiation=EncodingNegotiation(welcome(), 2, FRAMES),
        welcome=welcome(),
        learning_rate=0.5,
        is_evaluation_wanted=lambda client_id, version: client_id == 1,
        past_versions=1,
        downloads=Downloads(chunk_bytes=8, scheduler=scheduler),
        clock=float,
    )


def give(sender: Sender, client_id: int, task_id: int, version: int, number: int = 0) -> bool:
    sender.on_message_from(client_id)
    return sender.send_task(SendTask(client_id=client_id, task_id=task_id, version=version, number=number))


def task(task_id: int, version: int, number: int = 0, rate: float = 0.5, evaluate: bool | None = None) -> bytes:
    return encode(
        Task(
            task_id=task_id,
            number=number,
            version=version,
            learning_rate=rate,
            signature="0" * 64,
            payload_bytes=8,
            evaluate=evaluate,
            run_id=RUN,
        )
    )


def test_tasks_of_one_version_differ_in_their_numbers_and_in_whether_they_ask_for_an_evaluation(
    sender: Sender, wire: KeptWire
) -> None:
    for client_id, task_id, number in [(0, 1, 0), (1, 2, 0), (0, 70_000, 1), (1, 4, 300)]:
        assert give(sender, client_id, task_id, 0, number)
    assert wire.sent == [
        (b"0", task(1, 0), 1),
        (b"1", task(2, 0, evaluate=True), 1),
        (b"0", task(70_000, 0, 1), 1),
        (b"1", task(4, 0, 300, evaluate=True), 1),
    ]


def test_tasks_name_the_newest_accepted_one_of_their_client_where_the_run_wants_it(
    sender: Sender, wire: KeptWire
) -> None:
    sender.accepted_task = {0: 21, 1: 0}.__getitem__
    give(sender, 0, task_id=41, version=0, number=2)
    give(sender, 1, task_id=22, version=0, number=1)
    tasks = [decode(header) for _, header, _ in wire.sent]
    assert [isinstance(task, Task) and task.accepted_task for task in tasks] == [21, 0]
    assert [encode(task) for task in tasks] == [header for _, header, _ in wire.sent]


def test_tasks_with_a_model_of_before_have_the_learning_rate_of_now(sender: Sender, wire: KeptWire) -> None:
    give(sender, 0, 1, 0)
    sender.publish(1, FRAMES, 0.25)
    for task_id, version in [(2, 0), (3, 1)]:
        give(sender, 0, task_id, version)
    rates = [task(1, 0, rate=0.5), task(2, 0, rate=0.25), task(3, 1, rate=0.25)]
    assert [header for _, header, _ in wire.sent] == rates


@pytest.mark.parametrize(
    ("outcome", "first_outcome", "reason"),
    [
        ("accepted", "accepted", None),
        ("duplicate", "accepted", None),
        ("rejected", "rejected", Reason.WRONG_SIZE),
        ("duplicate", "rejected", Reason.NON_FINITE),
    ],
)
def test_every_verdict_is_sent_to_its_client(
    sender: Sender, wire: KeptWire, outcome: Any, first_outcome: Any, reason: Reason | None
) -> None:
    for task_id in (1, 70_000):
        sender.acknowledge(
            Acknowledge(
                client_id=1,
                task_id=task_id,
                outcome=Outcome(outcome),
                first_outcome=Outcome(first_outcome),
                reason=None if reason is None else reason.value,
            )
        )
    ack = Ack(task_id=1, outcome=outcome, first_outcome=first_outcome, reason=reason)
    expected = [encode(ack), encode(ack.model_copy(update={"task_id": 70_000}))]
    assert wire.sent == [(b"1", header, 0) for header in expected]


@pytest.mark.parametrize(("delivery", "still_speaks"), [(Delivery.SENT, 1), (Delivery.GONE, 1), (Delivery.FULL, None)])
def test_a_client_that_no_verdict_reaches_is_sent_nothing_more(
    sender: Sender, wire: KeptWire, sessions: Sessions, delivery: Delivery, still_speaks: int | None
) -> None:
    accepted = Outcome.ACCEPTED
    verdict = Acknowledge(client_id=1, task_id=1, outcome=accepted, first_outcome=accepted)
    wire.says = delivery
    sender.acknowledge(verdict)
    sender.acknowledge(verdict)
    assert len(wire.sent) == (2 if delivery is Delivery.SENT else 1)
    assert sessions.client_of(b"1") == still_speaks
