"""Whether the open round closes, has stalled, or goes on."""

from unstale.coordinator.membership import Membership, State
from unstale.coordinator.pending import Pending
from unstale.coordinator.triggers import Trigger


class OpenRound:
    """What is known of the round that is open, and what the trigger makes of it. Asked only while one is.

    deadline_passed: whether the trigger's `wait_s` has passed since the round was opened. failed_clients: clients whose
    task made no update that counts, because it failed or the update was refused, since the round was opened or played
    again.
    """

    def __init__(self, trigger: Trigger, membership: Membership, pending: Pending) -> None:
        self.deadline_passed = False
        self.failed_clients: set[int] = set()
        self._trigger = trigger
        self._membership = membership
        self._counts = membership.counts  # at hand: every update asks how many work
        self._pending = pending

    def begin(self) -> None:
        """Another round is opened."""
        self.deadline_passed = False
        self.failed_clients.clear()

    @property
    def stalled(self) -> bool:
        """Whether everyone active is idle, and neither an event to come nor a round without updates would be
        of use to them."""
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
        """How many pending updates make the round that closes now; None: it stays open."""
        pending = self._pending
        outstanding = self._awaited() if pending.once_a_cycle else self._counts[State.WORKING]
        ready = pending.ready
        if outstanding == 0 and ready == 0 and pending.parked:
            pending.end_cycle()
            outstanding, ready = self._awaited(), pending.ready
        take = self._trigger.take(pending=ready, outstanding=outstanding, due=self.deadline_passed)
        if take is None and self._membership.unavailable and self._counts[State.WORKING] == 0:
            # Nothing to wait for but those who declined: in a loop without rounds of its own only a new version helps.
            return None if self._trigger.in_rounds or pending else 0
        return take

    def _awaited(self) -> int:
        """Open tasks whose updates the round may wait for where clients contribute once a cycle: not those of clients
        that have had their turn."""
        clients = self._membership.clients
        return sum(
            clients[client_id].state is State.WORKING and client_id not in self._pending.contributed
            for client_id in self._membership.active
        )
