"""Accepted updates that are in no round yet, and the open round: whether it closes or has stalled."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from unstale.coordinator.actions import Contribution
from unstale.coordinator.events import UpdateArrived
from unstale.coordinator.membership import Membership, State
from unstale.coordinator.triggers import Trigger
from unstale.errors import UserError


@dataclass(slots=True, eq=False)
class Pending:
    """Updates in order of arrival. All are ready for a round, unless clients contribute once a cycle.

    Then an update is parked while its sender is in `contributed`: clients whose update a round of this cycle has taken.
    The cycle ends when all N clients have contributed, or by `end_cycle`; parked updates are ready then, in order.

    Source: WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/policies-with-memory.md#gsgm
    """

    _membership: Membership
    once_a_cycle: bool = False
    _ready: deque[UpdateArrived] = field(default_factory=deque)
    _parked: deque[UpdateArrived] = field(default_factory=deque)

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

    @property
    def contributed(self) -> set[int]:
        """Clients whose update a round of this cycle has taken."""
        return self._membership.contributed

    def append(self, update: UpdateArrived) -> None:
        """Add an accepted update."""
        (self._parked if update.client_id in self._membership.contributed else self._ready).append(update)

    def take(self, count: int, version: int) -> tuple[Contribution, ...]:
        """Remove the first `count` <= `ready` updates for the round that is applied to this version."""
        taken = [self._ready.popleft() for _ in range(count)]
        if self.once_a_cycle:
            self._membership.contribute(update.client_id for update in taken)
            if len(self.contributed) == len(self._membership.clients):
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
        self._membership.end_cycle()
        self._ready.extend(self._parked)
        self._parked.clear()

    def restore(self, updates: Sequence[UpdateArrived], parked: int, contributed: Iterable[int]) -> None:
        """Restore the updates of another instance, in order; the last `parked` are parked."""
        ready = len(updates) - parked
        self._ready = deque(updates[:ready])
        self._parked = deque(updates[ready:])
        self._membership.contribute(contributed)


@dataclass(slots=True, eq=False)
class OpenRound:
    """The open round, as its trigger sees it."""

    _trigger: Trigger
    _membership: Membership
    _pending: Pending
    deadline_passed: bool = False  # whether the trigger's `wait_s` has passed
    failed_clients: set[int] = field(default_factory=set)
    """Clients whose task failed or whose update was rejected since the round was opened or retried."""

    def begin(self) -> None:
        """Reset for the next round."""
        self.deadline_passed = False
        self.failed_clients.clear()

    @property
    def stalled(self) -> bool:
        """Whether all active clients are idle, and no event to come and no round without updates would help them."""
        membership = self._membership
        return (
            self._membership.counts[State.WORKING] == 0
            and not self._pending
            and bool(membership.active)
            and (
                bool(self.failed_clients)
                or not membership.sits_out.keys().isdisjoint(membership.unavailable)
                or not (self._trigger.in_rounds or membership.unavailable)
            )
        )

    def take(self) -> int | None:
        """Number of pending updates in the round if it closes now; None if it stays open."""
        pending, outstanding = self._pending, self._membership.awaited
        if outstanding == 0 and pending.ready == 0 and pending.parked:
            pending.end_cycle()
            outstanding = self._membership.awaited
        ready = pending.ready
        size = self._trigger.take(pending=ready, outstanding=outstanding, due=self.deadline_passed)
        if size is None and self._membership.unavailable and self._membership.counts[State.WORKING] == 0:
            # Only clients that declined are left. Where rounds have no participants, they need a new version.
            return None if self._trigger.in_rounds or pending else 0
        if size is not None:
            self._check_size(size, ready)
        return size

    def _check_size(self, size: int, ready: int) -> None:
        """Raise UserError for a trigger of a user's own that closes a round with an impossible number of updates."""
        least, most = 0 if self._trigger.in_rounds else 1, min(ready, self._trigger.k or ready)
        if not least <= size <= most:
            raise UserError(
                f"trigger {type(self._trigger).__name__} closes a round with {size} of {ready} pending updates, "
                f"expected {least} to {most}, or None where the round stays open"
            )
