"""Deadlines of open tasks. Pure."""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf

from unstale.coordinator.events import TaskExpired
from unstale.coordinator.machine import Coordinator

IsMoving = Callable[[int, float], bool]
"""Whether a transfer of a client moves, or waits for its turn, at this time."""


class Deadlines:
    """Of tasks from when they are given. timeout_s: for an answer; None for no deadline.

    A client whose transfer moves has not stopped: its task gets a little more time.
    """

    def __init__(self, coordinator: Coordinator, timeout_s: float | None) -> None:
        self._coordinator = coordinator
        self._timeout_s = inf if timeout_s is None else timeout_s
        self._open: list[tuple[float, int, int, int]] = []  # heap of deadline, count so far, client, task
        self._count = 0

    @property
    def due_s(self) -> float | None:
        """Time at which the next task may expire; None for never."""
        return self._open[0][0] if self._open else None

    def given(self, client_id: int, task_id: int, at_s: float) -> None:
        """A client was given a task."""
        if self._timeout_s < inf:
            self._add(client_id, task_id, at_s + self._timeout_s)

    def resume(self, at_s: float) -> None:
        """Give open tasks of the server before this one the whole time again."""
        for client in self._coordinator.membership.clients:
            if client.tasks.open_id is not None:
                self.given(client.client_id, client.tasks.open_id, at_s)

    def expired(self, at_s: float, is_moving: IsMoving, *, extra_s: float = 0.0) -> Iterator[TaskExpired]:
        """Events of the tasks that were not answered in time, each to be handled before the next.

        Args:
            at_s: Time now.
            is_moving: Whether a transfer excuses a client.
            extra_s: Added to each deadline, because answers may lie unread.
        """
        while self._open and self._open[0][0] + extra_s <= at_s:
            _, _, client_id, task_id = heappop(self._open)
            if not self._coordinator.awaits(client_id, task_id):
                continue
            if is_moving(client_id, at_s):
                self._add(client_id, task_id, at_s + min(self._timeout_s, 1.0))
            else:
                yield TaskExpired(client_id=client_id, task_id=task_id, at_s=at_s)

    def _add(self, client_id: int, task_id: int, due_s: float) -> None:
        heappush(self._open, (due_s, self._count, client_id, task_id))
        self._count += 1
