"""What is due when, in virtual time."""

import heapq
from collections.abc import Callable

from unstale_proto.messages import Task

Act = Callable[[], None]
_Entry = tuple[float, int, int, Act, Task | None]

AFTER_CLIENTS = 2**63  # a timer's place among equal times: what arrives just in time is in time
_SCANNED_MAX = 64  # entries that are not wanted, after which `upcoming` looks no further


class EventQueue:
    """Things to be done, in the order of their times; equal times by client id, then in the order of planning.

    now_s: virtual seconds, from 0.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._planned = 0
        # The place in the order of planning makes every entry differ.
        self._queue: list[_Entry] = []

    def schedule(self, at_s: float, client_id: int, act: Act, task: Task | None = None) -> None:
        """Have something done at a time. client_id: whom it concerns, or AFTER_CLIENTS. task: the one whose update will
        be asked for then, if any."""
        heapq.heappush(self._queue, (at_s, client_id, self._planned, act, task))
        self._planned += 1

    def advance(self) -> None:
        """Let time go on to what is due next, and do it."""
        assert self._queue, "nothing is due, and the run is not over"
        self.now_s, _, _, act, _ = heapq.heappop(self._queue)
        act()

    def upcoming(
        self, wanted: Callable[[int, Task], bool], most: int, until_s: float
    ) -> list[tuple[int, Task]]:
        """Clients and tasks of the next updates that will be asked for, up to a time, and that are wanted."""
        found: list[tuple[int, Task]] = []
        seen: list[_Entry] = []
        while self._queue and len(found) < most and len(seen) < most + _SCANNED_MAX:
            if self._queue[0][0] > until_s:
                break
            entry = heapq.heappop(self._queue)
            seen.append(entry)
            _, client_id, _, _, task = entry
            if task is not None and wanted(client_id, task):
                found.append((client_id, task))
        for entry in seen:
            heapq.heappush(self._queue, entry)
        return found
