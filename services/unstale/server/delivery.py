"""Detects tasks that never reached their client. Pure.

On a connection messages keep their order, and every heartbeat is answered. So a client that has heard the answer to a
heartbeat which was answered after its task had left has had the task, or never will: if its newest task is older then,
this one was lost, and is given again as another one. A client that loses many in a row is given none for a while.
Source: proto/PROTOCOL.md#42-tasks
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from unstale.coordinator.events import TaskExpired, TaskLost
from unstale_proto.messages import Heartbeat, Hello

LOST_MAX = 32  # tasks in a row: where half of all messages are lost, no accident


@dataclass(slots=True)
class _Sent:
    """The last task of a client."""

    task_id: int
    beat: int | None = None  # first answered heartbeat since, numbered above all that were answered before


@dataclass(slots=True, eq=False)
class DeliveryTracker:
    """Tasks sent to each client, and heartbeats answered since. A client without a record has no task to lose."""

    _sent: dict[int, _Sent] = field(default_factory=dict)
    _answered: dict[int, int] = field(default_factory=dict)  # the greatest number of a client's heartbeats so far
    _lost: Counter[int] = field(default_factory=Counter)  # tasks of a client in a row

    def sent(self, client_id: int, task_id: int) -> None:
        """A task was sent to a client. It replaces the one before."""
        self._sent[client_id] = _Sent(task_id)

    def on_heartbeat_answered(self, client_id: int, number: int) -> None:
        """A heartbeat of a client was answered."""
        before = self._answered.get(client_id, -1)
        if number <= before:
            return  # it was overtaken, or comes twice: the client may have heard this answer long ago
        self._answered[client_id] = number
        sent = self._sent.get(client_id)
        if sent is not None and sent.beat is None:
            sent.beat = number

    def lost(self, client_id: int, beat: Heartbeat) -> int | None:
        """The task that this heartbeat proves lost, returned once; None when it proves nothing."""
        sent = self._sent.get(client_id)
        if sent is None or sent.beat is None or beat.heard is None or beat.newest_task is None:
            return None
        if beat.heard < sent.beat or beat.newest_task >= sent.task_id:
            return None
        del self._sent[client_id]
        return sent.task_id

    def event_of_loss(self, client_id: int, task_id: int, at_s: float) -> TaskLost | TaskExpired:
        """The event for a task that was proven lost."""
        self._lost[client_id] += 1
        kind = TaskLost if self._lost[client_id] <= LOST_MAX else TaskExpired
        return kind(client_id=client_id, task_id=task_id, at_s=at_s)

    def accepted(self, client_id: int) -> None:
        """An update of a client was accepted: tasks reach it."""
        self._lost.pop(client_id, None)

    def expired_by_hello(self, hello: Hello, awaits: Callable[[int, int], bool], at_s: float) -> TaskExpired | None:
        """The event before a hello on another connection, if the client lost the task sent to it once too often."""
        sent = self._sent.get(hello.client_id)
        if sent is None or sent.task_id in hello.holding or not awaits(hello.client_id, sent.task_id):
            return None
        event = self.event_of_loss(hello.client_id, sent.task_id, at_s)
        return event if isinstance(event, TaskExpired) else None

    def forget(self, client_id: int) -> None:
        """Forget a client that said hello on another connection: the hello names its tasks; heartbeats start again."""
        self._sent.pop(client_id, None)
        self._answered.pop(client_id, None)
