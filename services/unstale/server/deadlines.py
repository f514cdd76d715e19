"""When tasks must be answered. Pure."""

import logging
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from unstale.coordinator.events import TaskExpired
from unstale.coordinator.machine import Coordinator

log = logging.getLogger("unstale.server")

Goes = Callable[[int, float], bool]
"""Whether a model or an update of a client is under way and moves, or waits for its turn, at this time."""


class Deadlines:
    """Of open tasks, from when they are given. timeout_s: for an answer; None for ever.

    A transfer that moves is no silence: who is at it when time is up is asked about again, a little later.
    """

    def __init__(self, coordinator: Coordinator, timeout_s: float | None) -> None:
        self._coordinator = coordinator
        self._timeout_s = inf if timeout_s is None else timeout_s
        self._open: list[tuple[float, int, int]] = []  # a heap: when it is due, client, task

    @property
    def due_s(self) -> float | None:
        """When the next task may expire; None for never."""
        return self._open[0][0] if self._open else None

    def given(self, client_id: int, task_id: int, at_s: float) -> None:
        """A client was given a task."""
        if self._timeout_s < inf:
            heappush(self._open, (at_s + self._timeout_s, client_id, task_id))

    def resume(self, at_s: float) -> None:
        """The run goes on with tasks that a server before this one gave: they have the whole time again."""
        for client in self._coordinator.membership.clients:
            if client.tasks.open_id is not None:
                self.given(client.client_id, client.tasks.open_id, at_s)

    def expired(self, at_s: float, goes_on: Goes, *, more_waits: bool) -> list[TaskExpired]:
        """Tasks that were not answered in time. more_waits: answers may be lying unread, after a pause of ours."""
        late_s = self._coordinator.settings.lease_s if more_waits else 0.0
        expired = []
        while self._open and self._open[0][0] + late_s <= at_s:
            _, client_id, task_id = heappop(self._open)
            if not self._coordinator.awaits(client_id, task_id):
                continue
            if goes_on(client_id, at_s):
                heappush(self._open, (at_s + min(self._timeout_s, 1.0), client_id, task_id))
            else:
                log.warning("client %d has not answered task %d in time", client_id, task_id)
                expired.append(TaskExpired(client_id=client_id, task_id=task_id, at_s=at_s))
        return expired
