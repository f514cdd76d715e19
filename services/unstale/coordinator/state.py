"""State of a run, and the steps that the event handlers of the coordinator consist of."""

import math

from unstale.coordinator.actions import Action, ApplyRound, CancelTimer, Contribution, Finish, ForgetVersion, SetTimer
from unstale.coordinator.events import RoundApplied
from unstale.coordinator.membership import ACTIVE, Client, Leases, Membership, State
from unstale.coordinator.phase import Phase
from unstale.coordinator.rounds import OpenRound, Pending
from unstale.coordinator.settings import CoordinatorSettings
from unstale.coordinator.tasks import Tasks

LEASE = "lease"  # the oldest lease may have expired
DEADLINE = "deadline"  # the round has lasted `Trigger.wait_s`
RETRY = "retry"  # the round has stalled: give tasks again


class CoordinatorState:
    """Clients, tasks, rounds, versions and timers of a run. Updates are pending, then in a round, then aggregated."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self.trigger = settings.trigger_part
        self.membership = Membership(settings.clients)
        self.leases = Leases(settings)
        self.tasks = Tasks(settings, self.membership)
        self.references = self.tasks.references
        self.pending = Pending(self.membership, settings.once_a_cycle)
        self.round = OpenRound(self.trigger, self.membership, self.pending)
        self.making: tuple[Contribution, ...] | None = None  # round that the learner is applying
        self.timers: dict[str, float] = {}  # due time of each timer that is set
        self.phase = Phase.GATHERING
        self.round_started_s: float | None = None  # when the last round was opened
        self.now_s = 0.0
        # Numbers of updates.
        self.accepted = self.aggregated = self.rejected = self.duplicates = 0
        # Numbers of tasks that failed or expired, and that clients declined.
        self.failed = self.declined = 0
        self.consecutive_failures = 0  # tasks that failed, or whose update was rejected, since the last accepted update
        self._round_size = settings.round_size_max

    @property
    def version(self) -> int:
        """Current version of the model: the number of rounds applied."""
        return self.references.current

    # Rounds.

    def _open_round(self, actions: list[Action], first: tuple[Contribution, ...] = ()) -> None:
        self.round_started_s = self.now_s
        self.phase = Phase.OPEN
        self.round.begin()
        if not self.trigger.in_rounds:
            self._give_tasks(actions, first)
        elif self.membership.active or self.pending:
            actions.extend(self.tasks.give_to_participants())
            if self.trigger.wait_s is not None:
                self._set_timer(DEADLINE, self.now_s + self.trigger.wait_s, actions)
        else:
            self.phase = Phase.IDLE
        self._check_round(actions)

    def _check_round(self, actions: list[Action]) -> None:
        """Close the open round if its trigger says so; set the retry timer exactly while the round has stalled."""
        if self.references.dropped:
            self._forget_versions(actions)
        is_open = self.phase is Phase.OPEN
        # While a client works, the round cannot have stalled: the usual case skips the check.
        stalled = is_open and self.membership.counts[State.WORKING] == 0 and self.round.stalled
        if is_open and not stalled:
            size = self.round.take()
            if size is not None:
                self._close_round(size, actions)
        if stalled is not (RETRY in self.timers):
            if stalled:
                self._set_timer(RETRY, self.now_s + self.settings.retry_s, actions)
            else:
                self._cancel_timer(RETRY, actions)

    def _close_round(self, size: int, actions: list[Action]) -> None:
        self.making = self.pending.take(size, self.version)
        self.phase = Phase.MAKING
        actions.append(ApplyRound(version=self.version, contributions=self.making))
        if self.trigger.cuts_off:
            for client_id in self.membership.active:
                client = self.membership.clients[client_id]
                if client.tasks.open_id is not None:
                    self.tasks.close(client, State.WAITING)

    def _retry(self, actions: list[Action]) -> None:
        """Give tasks again in a round that has stalled.

        Where clients have declined and the round can close without updates, it closes instead: only a new version
        gives those clients tasks again, and a client that always fails must not prevent it.
        """
        self.round.failed_clients.clear()
        self.membership.end_sitting_out()
        if self.membership.unavailable and self.round.take() is not None:
            return
        if self.trigger.in_rounds:
            actions.extend(self.tasks.give_to_participants(again=True))
        else:
            self._give_tasks(actions)

    def _forget_versions(self, actions: list[Action]) -> None:
        unneeded = self.references.take_unneeded()
        if unneeded and self.phase is not Phase.FINISHED:
            actions.extend(ForgetVersion(version=version) for version in unneeded)

    def _count_round(self, event: RoundApplied) -> tuple[Contribution, ...]:
        contributions = self.making
        assert contributions is not None, f"version {event.version} was made, and no round is in the making"
        assert event.version == self.version + 1, f"version {event.version} was made out of {self.version}"
        self.making = None
        self.aggregated += len(contributions)
        self.references.advance()
        for contribution in contributions:
            client = self.membership.clients[contribution.client_id]
            client.unaggregated -= 1
            self.references.release(contribution.base_version)
            if client.state is State.CONTRIBUTED:
                self.membership.move(client, State.WAITING)
        self.membership.on_version(self.version)
        return contributions

    # Clients.

    def _renew_lease(self, client_id: int) -> Client:
        client = self.membership.client(client_id)
        if client.state in ACTIVE:
            self.leases.renew(client_id, self.now_s)
        return client

    def _renew_leases(self) -> None:
        for client_id in list(self.leases.last_seen_s):
            self.leases.renew(client_id, self.now_s)

    def _deactivate(self, client: Client, state: State) -> None:
        if client.tasks.open_id is not None:
            self.tasks.close(client, state)
        else:
            self.membership.move(client, state)
        del self.leases.last_seen_s[client.client_id]

    # Tasks.

    def _take_back(self, client: Client, actions: list[Action]) -> None:
        """Close the open task of a client that gets none in this round, and give one to another client."""
        self.tasks.close(client, State.UNAVAILABLE)
        self._forget_versions(actions)
        if self.trigger.in_rounds and self.phase is Phase.OPEN:
            actions.extend(self.tasks.give_to_substitute(excluded=self.round.failed_clients))
        self._give_tasks(actions)
        self._check_round(actions)

    def _end_without_update(self, client: Client, actions: list[Action], *, raised: bool = False) -> None:
        """Close the open task of a client that failed or whose update was rejected. raised: its own code did."""
        self.tasks.close(client, State.WAITING)
        # After the end valid updates are rejected too: that is no failure.
        if self.phase is not Phase.FINISHED:
            self.consecutive_failures += 1
            client.consecutive_failures += 1
            client.code_errors += raised
            self.round.failed_clients.add(client.client_id)
            self._check_round(actions)

    def _replace_task(self, client: Client, actions: list[Action]) -> None:
        """Replace an open task that never reached its client, in the same round and without a draw."""
        self.tasks.close(client, State.WAITING)
        self._forget_versions(actions)
        if self.phase is not Phase.FINISHED:
            actions.append(self.tasks.give(client))

    def _give_tasks(self, actions: list[Action], first: tuple[Contribution, ...] = ()) -> None:
        """Give tasks to idle clients, senders of `first` first, unless participants were chosen for the open round."""
        if self.trigger.in_rounds or self.phase not in (Phase.OPEN, Phase.MAKING):
            return
        if self.trigger.frees_sender:
            # Not while a whole round is pending behind the one in the making, or behind the open one, which closes as
            # soon as tasks are given. Where senders are freed there are no cycles: all pending updates are ready.
            rounds = 2 if self.phase is Phase.OPEN else 1
            if self.pending.ready >= rounds * self._round_size:
                return
        actions.extend(self.tasks.give_to_waiting(first))

    # Timers and the end of the run.

    def _end_leases(self, actions: list[Action]) -> None:
        expired = self.leases.expired(self.now_s)
        for client_id in expired:
            self._deactivate(self.membership.clients[client_id], State.LOST)
        if expired:
            self._forget_versions(actions)
            self._give_tasks(actions)

    def _watch_leases(self, actions: list[Action]) -> None:
        """Set the lease timer where there are leases; it fires no later than the oldest expires."""
        expiry_s = self.leases.next_expiry_s()
        if LEASE not in self.timers and expiry_s < math.inf:
            self._set_timer(LEASE, expiry_s, actions)

    def _set_timer(self, timer: str, due_s: float, actions: list[Action]) -> None:
        self.timers[timer] = due_s
        actions.append(SetTimer(timer=timer, due_s=due_s))

    def _cancel_timer(self, timer: str, actions: list[Action]) -> None:
        del self.timers[timer]
        actions.append(CancelTimer(timer=timer))

    def _finish(self, reason: str, actions: list[Action]) -> None:
        self.phase = Phase.FINISHED
        for timer in sorted(self.timers):
            self._cancel_timer(timer, actions)
        actions.append(Finish(version=self.version, reason=reason))
