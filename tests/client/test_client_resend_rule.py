"""The session resends updates exactly as the pseudocode of PROTOCOL.md 5 says, which is written down here once more."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from support.wire import RUN, update, welcome
from unstale_client.actions import Action, Send
from unstale_client.session import ClientSession, State
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, Error, Heartbeat, Task, Update

PAYLOAD = [memoryview(b"8 bytes.")]


@dataclass
class Entry:
    beat: int
    first: int | None = None
    last: int | None = None


@dataclass
class Pseudocode:
    """Each call returns the ids of the updates that are sent. No payload is in chunks."""

    next: int = 0
    is_in: bool = False
    sendings: int = 0
    kept: dict[int, Entry] = field(default_factory=dict)

    def send(self, *task_ids: int) -> list[int]:
        for task_id in task_ids:
            entry = self.kept[task_id]
            entry.beat, entry.last = self.next, self.sendings
            entry.first = self.sendings if entry.first is None else entry.first
            self.sendings += 1
        return list(task_ids)

    def on_trained(self, task_id: int) -> list[int]:
        self.kept[task_id] = Entry(self.next)
        return self.send(task_id) if self.is_in else []

    def on_answer(self, number: int) -> list[int]:
        if not self.is_in or number >= self.next:
            return []
        return self.send(*[task_id for task_id, entry in self.kept.items() if entry.beat <= number])

    def on_ack(self, task_id: int) -> list[int]:
        entry = self.kept.pop(task_id, None)
        if entry is None or entry.first is None or not self.is_in:
            return []
        first = entry.first
        return self.send(*[one for one, other in self.kept.items() if other.last is not None and other.last < first])

    def on_welcome(self) -> list[int]:
        if self.is_in:
            return []
        self.is_in = True
        return self.send(*self.kept)


def sent(actions: list[Action]) -> list[int]:
    return [
        action.message.task_id for action in actions if isinstance(action, Send) and isinstance(action.message, Update)
    ]


def task(task_id: int) -> Task:
    return Task(task_id=task_id, number=0, version=0, learning_rate=0.1, signature="0" * 64, payload_bytes=8)


@given(st.data())
def test_the_session_follows_the_pseudocode(data: st.DataObject) -> None:
    session, rule, trained, now_s = ClientSession(0, "ab" * 16), Pseudocode(), 0, 0.0
    session.reachable(now_s)
    assert sent(session.received(welcome(), [], now_s)) == rule.on_welcome() == []
    for _ in range(data.draw(st.integers(0, 30))):
        match data.draw(st.sampled_from(["train", "beat", "answer", "ack", "lose", "welcome"])):
            case "train":
                trained += 1
                session.received(task(trained), PAYLOAD, now_s)
                assert sent(session.trained(RUN, update(trained), PAYLOAD)) == rule.on_trained(trained)
            case "beat" if session.state is State.IN:
                assert session.due_s is not None
                now_s = session.due_s
                session.received(welcome(), [], now_s)  # so that the server is not silent
                session.tick(now_s)
                rule.next += 1
            case "answer":
                number = data.draw(st.integers(0, rule.next))
                assert sent(session.received(Heartbeat(number=number, version=0), [], now_s)) == rule.on_answer(number)
            case "ack":
                task_id = data.draw(st.integers(1, trained + 1))
                ack = Ack(task_id=task_id, outcome="accepted", first_outcome="accepted")
                assert sent(session.received(ack, [], now_s)) == rule.on_ack(task_id)
            case "lose":
                session.received(Error(reason=Reason.HELLO_FIRST), [], now_s)
                rule.is_in = False
            case "welcome":
                assert sent(session.received(welcome(), [], now_s)) == rule.on_welcome()
    assert session.unacknowledged == len(rule.kept)
