"""Whether the open round closes, has stalled, or goes on."""

from unstale.coordinator.membership import Membership, State
from unstale.coordinator.pending import Pending
from unstale.coordinator.triggers import Trigger


class OpenRound:
    """What is known of the round that is open, and what the trigger makes of it. Asked only while one is.

    deadline_passed: whether the trigger's `wait_s` has passed since the round was opened. in_vain: clients whose task
    made no update that counts, because it failed or the update was refused, since the round was opened or played again.
    """

    def __init__(self, trigger: Trigger, membership: Membership, pending: Pending) -> None:
        self.deadline_passed = False
        self.in_vain: set[int] = set()
        self._trigger = trigger
        self._membership = membership
        self._pending = pending

    def begin(self) -> None:
        """Another round is opened."""
        self.deadline_passed = False
        self.in_vain.clear()

    @property
    def stalled(self) -> bool:
        """Whether everyone active is idle, and neither an event to come nor a round without updates would be
        of use to them."""
        membership = self._membership
        return (
            membership.outstanding == 0
            and not self._pending
            and bool(membership.active)
            and (bool(self.in_vain) or not (self._trigger.in_rounds or membership.unavailable))
        )

    def take(self) -> int | None:
        """How many pending updates make the round that closes now; None: it stays open."""
        outstanding = self._awaited()
        if outstanding == 0 and not self._pending.ready and self._pending:
            self._pending.end_cycle()
            outstanding = self._awaited()
        take = self._trigger.take(
            pending=self._pending.ready, outstanding=outstanding, due=self.deadline_passed
        )
        if take is None and self._only_a_new_version_helps():
            return 0
        return take

    def _only_a_new_version_helps(self) -> bool:
        """Whether there is nothing to wait for but those who declined, in a loop without rounds of its own."""
        return (
            bool(self._membership.unavailable)
            and self._membership.outstanding == 0
            and not self._trigger.in_rounds
            and not self._pending
        )

    def _awaited(self) -> int:
        """Open tasks whose updates the round may wait for: once a cycle, not those of clients that have had their
        turn."""
        if not self._pending.once_a_cycle:
            return self._membership.outstanding
        clients = self._membership.clients
        return sum(
            clients[client_id].state is State.WORKING and client_id not in self._pending.contributed
            for client_id in self._membership.active
        )
