"""Times of many clients, the earliest of which is found without a visit of the others. Pure."""

from heapq import heapify, heappop, heappush
from math import inf

SLACK = 64  # replaced entries that are not worth a removal


class Timers:
    """One time for each client. Each call takes O(log N), averaged over many calls."""

    def __init__(self) -> None:
        self._due_s: dict[int, float] = {}  # by client
        self._heap: list[tuple[float, int]] = []  # with entries that another time has replaced

    def __contains__(self, client_id: int) -> bool:
        return client_id in self._due_s

    def __len__(self) -> int:
        return len(self._due_s)

    def set(self, client_id: int, due_s: float) -> None:
        """Replace the time of a client; infinity for none."""
        if self._due_s.get(client_id, inf) == due_s:
            return
        if due_s == inf:
            del self._due_s[client_id]
        else:
            self._due_s[client_id] = due_s
            heappush(self._heap, (due_s, client_id))
        if len(self._heap) > 2 * len(self._due_s) + SLACK:
            self._heap = [(due_s, client_id) for client_id, due_s in self._due_s.items()]
            heapify(self._heap)

    @property
    def due_s(self) -> float:
        """The earliest time; infinity for none."""
        while self._heap and self._due_s.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else inf

    @property
    def first(self) -> int:
        """The client with the earliest time. There has to be one."""
        assert self.due_s < inf
        return self._heap[0][1]

    def take(self, at_s: float) -> list[int]:
        """Remove the times until `at_s`. Returns their clients, the earliest first."""
        taken = []
        while self.due_s <= at_s:
            _, client_id = heappop(self._heap)
            del self._due_s[client_id]
            taken.append(client_id)
        return taken
