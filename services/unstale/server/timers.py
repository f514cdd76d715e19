"""Timers of the coordinator, and deadlines of open tasks. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from unstale.coordinator.events import TaskExpired, TimerFired
from unstale.coordinator.machine import LEASE, Coordinator

IsMoving = Callable[[int, float], bool]
"""Whether a transfer of a client moves, or waits for its turn, at this time."""

_Entry = tuple[float, int, str | None, int, int]
"""Due time, count so far, timer or None, client, task."""


@dataclass(slots=True, eq=False)
class Timers:
    """Ordered by time, then by when they were set. A client whose transfer moves gets a little more time."""

    coordinator: Coordinator
    task_timeout_s: float | None  # for an answer to a task; None for no deadline
    _due_s: dict[str, float] = field(default_factory=dict)  # of timers that are set
    _heap: list[_Entry] = field(default_factory=list)
    _count: int = 0

    def set(self, timer: str, due_s: float) -> None:
        """Set a timer, or move it."""
        self._due_s[timer] = due_s
        self._push(due_s, timer)

    def cancel(self, timer: str) -> None:
        """Cancel a timer, if it is set."""
        self._due_s.pop(timer, None)

    def on_task(self, client_id: int, task_id: int, at_s: float) -> None:
        """A client was given a task."""
        if self.task_timeout_s is not None:
            self._push(at_s + self.task_timeout_s, None, client_id, task_id)

    def resume(self, at_s: float) -> None:
        """Give open tasks of the server before this one the whole time again."""
        for client in self.coordinator.membership.clients:
            if client.tasks.open_id is not None:
                self.on_task(client.client_id, client.tasks.open_id, at_s)

    @property
    def due_s(self) -> float:
        """Time of the next event, or of one that may turn out not to happen; inf for none."""
        heap = self._heap
        while heap and not self._is_set(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else inf

    def due_events(
        self, at_s: float, is_moving: IsMoving, *, extra_s: float = 0.0
    ) -> Iterator[TimerFired | TaskExpired]:
        """Events that are due, each to be handled before the next. extra_s: for messages that may lie unread."""
        deferred: list[_Entry] = []
        while self._heap and self._heap[0][0] <= at_s:
            entry = heappop(self._heap)
            due_s, _, timer, client_id, task_id = entry
            if not self._is_set(entry):
                continue
            if due_s + extra_s > at_s and timer in (None, LEASE):
                deferred.append(entry)
            elif timer is not None:
                del self._due_s[timer]
                yield TimerFired(timer=timer, at_s=at_s)
            elif not self.coordinator.awaits(client_id, task_id):
                continue
            elif is_moving(client_id, at_s):
                self._push(at_s + min(self.task_timeout_s or inf, 1.0), None, client_id, task_id)
            else:
                yield TaskExpired(client_id=client_id, task_id=task_id, at_s=at_s)
        for entry in deferred:
            heappush(self._heap, entry)

    def _is_set(self, entry: _Entry) -> bool:
        timer = entry[2]
        return timer is None or self._due_s.get(timer) == entry[0]

    def _push(self, due_s: float, timer: str | None, client_id: int = 0, task_id: int = 0) -> None:
        if due_s < inf:
            heappush(self._heap, (due_s, self._count, timer, client_id, task_id))
            self._count += 1
