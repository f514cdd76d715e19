"""Clients that no toxic touches: their messages take no time, and are not made."""

from dataclasses import dataclass, field
from functools import partial

from unstale.coordinator import events
from unstale.coordinator.actions import Acknowledge, Outcome
from unstale.server.client_limits import ClientLimits
from unstale.simulator.event_queue import EventQueue
from unstale.simulator.simulated_client import ServerSide
from unstale_client.session import GREETING_S
from unstale_proto.errors import RemoteContractError
from unstale_proto.messages import Task


@dataclass(slots=True, eq=False)
class UndisturbedClients:
    """The fast path: the state of a client is its newest task."""

    _event_queue: EventQueue
    _server: ServerSide
    _client_limits: ClientLimits
    _newest: dict[int, Task] = field(default_factory=dict)  # by client

    def start(self, client_id: int, task: Task) -> None:
        """A client begins a task, instead of its last one."""
        self._newest[client_id] = task
        due_s = self._event_queue.now_s + self._server.duration_s(client_id, task.number)
        self._event_queue.schedule(due_s, client_id, partial(self._finish, client_id, task), task)

    def _finish(self, client_id: int, task: Task) -> None:
        if task is self._newest[client_id]:
            self._server.take_update(client_id, task)

    def acknowledge(self, verdict: Acknowledge) -> None:
        """A client receives the verdict on its update."""
        accepted = verdict.first_outcome is Outcome.ACCEPTED
        number = self._newest[verdict.client_id].number
        self._server.settle(verdict.client_id, number, accepted=accepted)

    def exclude(self, client_id: int) -> None:
        """A client is in quarantine: it repeats its hello, as its session would."""
        at_s = self._event_queue.now_s + GREETING_S
        self._event_queue.schedule(at_s, client_id, partial(self._greet, client_id))

    def _greet(self, client_id: int) -> None:
        at_s = self._event_queue.now_s
        try:
            self._client_limits.on_hello(b"", None, client_id, at_s)
        except RemoteContractError:
            self.exclude(client_id)
        else:
            self._server.executor.handle(events.ClientJoined(client_id=client_id, at_s=at_s))
