"""Clients that no toxic touches: their messages take no time, and are not made."""

from functools import partial

from unstale.client.session import GREETING_S
from unstale.coordinator import events
from unstale.coordinator.actions import Acknowledge, Outcome
from unstale.server.client_limits import ClientLimits
from unstale.simulator.event_queue import EventQueue
from unstale.simulator.simulated_client import ServerSide
from unstale_proto.errors import RemoteContractError
from unstale_proto.messages import Task


class UndisturbedClients:
    """The fast path: a client is no more than its newest task."""

    def __init__(self, event_queue: EventQueue, server: ServerSide, client_limits: ClientLimits) -> None:
        self._event_queue = event_queue
        self._server = server
        self._client_limits = client_limits
        self._newest: dict[int, Task] = {}  # by client

    def start(self, client_id: int, task: Task) -> None:
        """A client begins a task, in the place of the one before."""
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
        """A client is in quarantine: it says hello again and again, as its session would."""
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
