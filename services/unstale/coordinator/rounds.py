"""The open round: whether it closes or has stalled."""

from unstale.coordinator.membership import Membership, State
from unstale.coordinator.pending import Pending
from unstale.coordinator.triggers import Trigger


class OpenRound:
    """The open round, as its trigger sees it.

    Attributes:
        deadline_passed: Whether the trigger's `wait_s` has passed.
        failed_clients: Clients whose task failed or whose update was rejected since the round was opened or retried.
    """

    def __init__(self, trigger: Trigger, membership: Membership, pending: Pending) -> None:
        self.deadline_passed = False
        self.failed_clients: set[int] = set()
        self._trigger = trigger
        self._membership = membership
        self._counts = membership.counts  # a short way, taken with every update
        self._pending = pending

    def begin(self) -> None:
        """Reset for the next round."""
        self.deadline_passed = False
        self.failed_clients.clear()

    @property
    def stalled(self) -> bool:
        """Whether all active clients are idle, and no event to come and no round without updates would help them."""
        membership = self._membership
        return (
            self._counts[State.WORKING] == 0
            and not self._pending
            and bool(membership.active)
            and (
                bool(self.failed_clients)
                or membership.is_sitting_out
                or not (self._trigger.in_rounds or membership.unavailable)
            )
        )

    def take(self) -> int | None:
        """Number of pending updates in the round if it closes now; None if it stays open."""
        pending = self._pending
        outstanding = self._awaited() if pending.once_a_cycle else self._counts[State.WORKING]
        ready = pending.ready
        if outstanding == 0 and ready == 0 and pending.parked:
            pending.end_cycle()
            outstanding, ready = self._awaited(), pending.ready
        size = self._trigger.take(pending=ready, outstanding=outstanding, due=self.deadline_passed)
        if size is None and self._membership.unavailable and self._counts[State.WORKING] == 0:
            # Only clients that declined are left. Where rounds have no participants, they need a new version.
            return None if self._trigger.in_rounds or pending else 0
        return size

    def _awaited(self) -> int:
        """Open tasks of clients that have not contributed in this cycle."""
        clients = self._membership.clients
        return sum(
            clients[client_id].state is State.WORKING and client_id not in self._pending.contributed
            for client_id in self._membership.active
        )
