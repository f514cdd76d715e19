"""Accepted updates that no round holds yet, and which of them may go into the next one."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from unstale.coordinator.actions import Contribution
from unstale.coordinator.events import UpdateArrived


class Pending:
    """In order of arrival. All of them are ready for a round, unless clients contribute once a cycle.

    Then an update is parked while its sender is in `contributed`: those whose update a round of this cycle has taken.
    The cycle ends when all N clients are in it, or when `end_cycle` says that nobody else will come; what was parked is
    then ready, in its order.
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
        """How many wait for the next cycle; they come last in order."""
        return len(self._parked)

    @property
    def ready(self) -> int:
        """How many may go into the next round."""
        return len(self._ready)

    def append(self, update: UpdateArrived) -> None:
        """An update was accepted."""
        (self._parked if update.client_id in self.contributed else self._ready).append(update)

    def take(self, count: int, version: int) -> tuple[Contribution, ...]:
        """The first ones that are ready, `count` <= `ready` of them, for the round that is made out of this version."""
        taken = [self._ready.popleft() for _ in range(count)]
        if self.once_a_cycle:
            self.contributed.update(update.client_id for update in taken)
            if len(self.contributed) == self._clients:
                self.end_cycle()
        return tuple(
            [
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
        """Nobody else will contribute to this one: everybody may again."""
        self.contributed.clear()
        self._ready.extend(self._parked)
        self._parked.clear()

    def restore(self, updates: Sequence[UpdateArrived], parked: int, contributed: Iterable[int]) -> None:
        """Hold what another one held, in its order, the last `parked` of them parked."""
        ready = len(updates) - parked
        self._ready = deque(updates[:ready])
        self._parked = deque(updates[ready:])
        self.contributed = set(contributed)
