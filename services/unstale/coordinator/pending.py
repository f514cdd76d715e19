"""Accepted updates that are in no round yet."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from unstale.coordinator.actions import Contribution
from unstale.coordinator.events import UpdateArrived


class Pending:
    """Updates in order of arrival. All are ready for a round, unless clients contribute once a cycle.

    Then an update is parked while its sender is in `contributed`: clients whose update a round of this cycle has taken.
    The cycle ends when all N clients have contributed, or by `end_cycle`; parked updates are ready then, in order.

    Source: WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/policies-with-memory.md#gsgm
    """

    def __init__(self, clients: int, *, once_a_cycle: bool = False) -> None:
        self.once_a_cycle = once_a_cycle
        self.contributed: set[int] = set()
        self._clients = clients
        self._ready: deque[UpdateArrived] = deque()
        self._parked: deque[UpdateArrived] = deque()

    def __len__(self) -> int:
        return len(self._ready) + len(self._parked)

    def __iter__(self) -> Iterator[UpdateArrived]:
        yield from self._ready
        yield from self._parked

    @property
    def parked(self) -> int:
        """Number of updates that wait for the next cycle; they come last in order."""
        return len(self._parked)

    @property
    def ready(self) -> int:
        """Number of updates that may go into the next round."""
        return len(self._ready)

    def append(self, update: UpdateArrived) -> None:
        """Add an accepted update."""
        (self._parked if update.client_id in self.contributed else self._ready).append(update)

    def take(self, count: int, version: int) -> tuple[Contribution, ...]:
        """Remove the first `count` <= `ready` updates for the round that is applied to this version."""
        taken = [self._ready.popleft() for _ in range(count)]
        if self.once_a_cycle:
            self.contributed.update(update.client_id for update in taken)
            if len(self.contributed) == self._clients:
                self.end_cycle()
        return tuple(
            [  # a list is faster than a generator
                Contribution(
                    client_id=update.client_id,
                    task_id=update.task_id,
                    handle=update.handle,
                    base_version=update.base_version,
                    staleness=version - update.base_version,
                )
                for update in taken
            ]
        )

    def end_cycle(self) -> None:
        """Let all clients contribute again."""
        self.contributed.clear()
        self._ready.extend(self._parked)
        self._parked.clear()

    def restore(self, updates: Sequence[UpdateArrived], parked: int, contributed: Iterable[int]) -> None:
        """Restore the updates of another instance, in order; the last `parked` are parked."""
        ready = len(updates) - parked
        self._ready = deque(updates[:ready])
        self._parked = deque(updates[ready:])
        self.contributed = set(contributed)
