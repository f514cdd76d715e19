"""Queue of events in virtual time."""

import heapq
from collections.abc import Callable
from math import inf

from unstale_proto.messages import Task

Act = Callable[[], None]
_Entry = tuple[float, int, int, Act, Task | None]

_SCANNED_MAX = 64  # unwanted entries after which `upcoming` stops


class EventQueue:
    """Calls in the order of their times; equal times by client id, then in the order of `schedule`.

    Attributes:
        now_s: Virtual seconds, from 0.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._count = 0
        # Two entries differ in their number at the latest, so calls are not compared.
        self._queue: list[_Entry] = []

    def schedule(self, at_s: float, client_id: int, act: Act, task: Task | None = None) -> None:
        """Schedule a call. client_id: that it concerns. task: whose update it needs, if any."""
        heapq.heappush(self._queue, (at_s, client_id, self._count, act, task))
        self._count += 1

    def clock(self) -> float:
        """Virtual time now, as a function."""
        return self.now_s

    def advance(self, until_s: float) -> bool:
        """Advance the time to the next call, and make it. False when no call is left until until_s, the time then."""
        if not self._queue or self._queue[0][0] > until_s:
            assert until_s < inf, "nothing is due, and the run is not over"
            self.now_s = until_s
            return False
        self.now_s, _, _, act, _ = heapq.heappop(self._queue)
        act()
        return True

    def upcoming(self, is_wanted: Callable[[int, Task], bool], most: int, until_s: float) -> list[tuple[int, Task]]:
        """Clients and tasks of the next updates up to a time, of those that are wanted."""
        upcoming: list[tuple[int, Task]] = []
        seen: list[_Entry] = []
        while self._queue and len(upcoming) < most and len(seen) < most + _SCANNED_MAX:
            if self._queue[0][0] > until_s:
                break
            entry = heapq.heappop(self._queue)
            seen.append(entry)
            _, client_id, _, _, task = entry
            if task is not None and is_wanted(client_id, task):
                upcoming.append((client_id, task))
        for entry in seen:
            heapq.heappush(self._queue, entry)
        return upcoming
