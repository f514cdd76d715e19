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
    _deadlines: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    """Of the newest task of each client: due time, count so far, task. The heap has one entry of each client here."""

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
            self._set_deadline(at_s + self.task_timeout_s, client_id, task_id)

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
            if not self._is_set(entry) or self._is_postponed(entry):
                continue
            if due_s + extra_s > at_s and timer in (None, LEASE):
                deferred.append(entry)
            elif timer is not None:
                del self._due_s[timer]
                yield TimerFired(timer=timer, at_s=at_s)
            elif self._has_expired(client_id, task_id, at_s, is_moving):
                yield TaskExpired(client_id=client_id, task_id=task_id, at_s=at_s)
        for entry in deferred:
            heappush(self._heap, entry)

    def _has_expired(self, client_id: int, task_id: int, at_s: float, is_moving: IsMoving) -> bool:
        """Whether a task whose deadline has passed is open, and its client is not in a transfer that moves."""
        del self._deadlines[client_id]
        if not self.coordinator.awaits(client_id, task_id):
            return False
        if is_moving(client_id, at_s):
            self._set_deadline(at_s + min(self.task_timeout_s or inf, 1.0), client_id, task_id)
            return False
        return True

    def _set_deadline(self, due_s: float, client_id: int, task_id: int) -> None:
        """Replace the deadline of a client, if any. A deadline is never earlier than the one before."""
        is_new = client_id not in self._deadlines
        self._deadlines[client_id] = due_s, self._count, task_id
        if is_new and due_s < inf:
            heappush(self._heap, (due_s, self._count, None, client_id, task_id))
        self._count += 1

    def _is_postponed(self, entry: _Entry) -> bool:
        """Whether this is the deadline of a task before the newest one of its client; adds that one's then."""
        _, count, timer, client_id, _ = entry
        if timer is not None or self._deadlines[client_id][1] == count:
            return False
        due_s, count, task_id = self._deadlines[client_id]
        heappush(self._heap, (due_s, count, None, client_id, task_id))
        return True

    def _is_set(self, entry: _Entry) -> bool:
        timer = entry[2]
        return timer is None or self._due_s.get(timer) == entry[0]

    def _push(self, due_s: float, timer: str) -> None:
        if due_s < inf:
            heappush(self._heap, (due_s, self._count, timer, 0, 0))
            self._count += 1
