"""The coordinator: who works on what, and when a round closes. Events in, actions out, and nothing else.

`phase.py` has the table of its phases. Source: design.md 1 to 4.
"""

import math
from typing import assert_never

from unstale.coordinator.actions import (
    Acknowledge,
    Action,
    ApplyRound,
    CancelTimer,
    Contribution,
    DiscardUpdate,
    Evaluate,
    Finish,
    ForgetVersion,
    Outcome,
    SendTask,
    SetTimer,
)
from unstale.coordinator.admission import judge
from unstale.coordinator.events import (
    ClientJoined,
    ClientLeft,
    Event,
    HeartbeatReceived,
    RoundApplied,
    StopRequested,
    TaskFailed,
    TimerFired,
    UpdateArrived,
)
from unstale.coordinator.leases import Leases
from unstale.coordinator.membership import ACTIVE, Client, Membership, State
from unstale.coordinator.pending import Pending
from unstale.coordinator.phase import Phase
from unstale.coordinator.references import VersionReferences
from unstale.coordinator.settings import CoordinatorSettings

LEASE = "lease"  # the oldest lease may have run out
DEADLINE = "deadline"  # the round has lasted as long as it should
RETRY = "retry"  # the round has stalled: give tasks again


class Coordinator:
    """The state machine. State changes only in `handle`; everything may be read at any time.

    version: rounds applied. pending: accepted updates that no round holds yet, in order of arrival. making:
    the round that the learner was told to apply, None when there is none. round_started_s: when the last
    round was opened, in the shell's seconds. accepted, aggregated, rejected, duplicates: updates so far, with
    accepted = aggregated + pending + those in the making. tasks_given: so far. failed: tasks so far that
    clients gave back (TaskFailed). fruitless: tasks in a row that their clients could not answer with an
    update that counts, because they failed or the update was refused; an accepted update starts the row
    anew, and tasks that were taken back are not in it. A shell may end a run in which it grows without end.
    fruitless_in_round: such tasks since participants were last chosen; means nothing for a trigger that does
    not choose them. timers: those set, and when they are due.

    An accepted update is unaggregated until RoundApplied; `settings.unaggregated_max` bounds how many there
    are.
    """

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self.trigger = settings.trigger.create()
        self.selector = settings.selector.create()
        self.membership = Membership(settings.clients)
        self.leases = Leases(settings.lease_s)
        self.references = VersionReferences()
        self.pending = Pending(settings.clients, once_a_cycle=settings.once_a_cycle)
        self.making: tuple[Contribution, ...] | None = None
        self.timers: dict[str, float] = {}
        self.phase = Phase.GATHERING
        self.deadline_passed = False
        self.fruitless_in_round = 0
        self.round_started_s: float | None = None
        self.now_s = -math.inf
        self.tasks_given = 0
        self.accepted = 0
        self.aggregated = 0
        self.rejected = 0
        self.duplicates = 0
        self.failed = 0
        self.fruitless = 0

    @property
    def version(self) -> int:
        """Rounds applied so far, and so the current version of the model."""
        return self.references.current

    @property
    def clients_by_state(self) -> dict[str, int]:
        """How many clients are in each state, by the state's name in lower case."""
        return {state.name.lower(): self.membership.counts[state] for state in State}

    @property
    def updates_by_outcome(self) -> dict[str, int]:
        """How many updates were told what, by the outcome's name."""
        return {
            Outcome.ACCEPTED.value: self.accepted,
            Outcome.DUPLICATE.value: self.duplicates,
            Outcome.REJECTED.value: self.rejected,
        }

    def is_active(self, client_id: int) -> bool:
        """Whether a client takes part: it has joined, and has neither left nor been lost since."""
        return self.membership.client(client_id).state in ACTIVE

    def awaits(self, client_id: int, task_id: int) -> bool:
        """Whether an update of this task would be the first, and not too late."""
        return self.membership.client(client_id).tasks.open_id == task_id

    def handle(self, event: Event) -> list[Action]:
        """Take in one event; what is to be done about it, in this order.

        The answer to the event (Acknowledge, DiscardUpdate); ForgetVersion, ascending; Evaluate; SendTask, and
        ApplyRound; among these, timers. The end of the run is CancelTimer, then Finish.
        """
        assert event.at_s >= self.now_s, f"time went back from {self.now_s} to {event.at_s}"
        self.now_s = event.at_s
        actions: list[Action] = []
        match event:
            case UpdateArrived():
                self._update_arrived(event, actions)
            case HeartbeatReceived():
                self._heard_of(event.client_id)
            case RoundApplied():
                self._round_applied(event, actions)
            case ClientJoined():
                self._client_joined(event, actions)
            case ClientLeft():
                self._client_left(event, actions)
            case TaskFailed():
                self._task_failed(event, actions)
            case TimerFired():
                self._timer_fired(event, actions)
            case StopRequested():
                self._stop_requested(actions)
            case _:
                assert_never(event)
        return actions

    # The events.

    def _update_arrived(self, update: UpdateArrived, actions: list[Action]) -> None:
        client = self._heard_of(update.client_id)
        answers_open_task = update.task_id == client.tasks.open_id
        verdict, repeated = judge(
            client.tasks, client.base_version, update, finished=self.phase is Phase.FINISHED
        )
        outcome = Outcome.DUPLICATE if repeated else verdict.outcome
        actions.append(
            Acknowledge(
                client_id=update.client_id,
                task_id=update.task_id,
                outcome=outcome,
                first_outcome=verdict.outcome,
                reason=verdict.reason,
            )
        )
        if outcome is Outcome.ACCEPTED:
            self._accept(client, update, actions)
            return
        if update.handle >= 0:
            actions.append(DiscardUpdate(handle=update.handle))
        if repeated:
            self.duplicates += 1
            return
        self.rejected += 1
        if answers_open_task:
            self._end_in_vain(client, actions)

    def _accept(self, client: Client, update: UpdateArrived, actions: list[Action]) -> None:
        assert update.handle >= 0, "an update without a defect lies staged under a handle"
        self.accepted += 1
        self.fruitless = client.fruitless = 0
        self.pending.append(update)
        client.unaggregated += 1
        client.tasks.open_id = None
        if self.trigger.frees_sender:
            self.membership.move(client, State.WAITING)
            self._give_tasks(actions)
        else:
            self.membership.move(client, State.CONTRIBUTED)
        self._go_on(actions)

    def _round_applied(self, event: RoundApplied, actions: list[Action]) -> None:
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
        if self.phase is Phase.FINISHED:
            return
        self._forget_versions(actions)
        last = self.version == self.settings.rounds
        if last or self.version % self.settings.evaluate_every == 0:
            actions.append(Evaluate(version=self.version))
        if last:
            self._finish("finished", actions)
        else:
            self._open_round(actions, first=contributions)

    def _client_joined(self, event: ClientJoined, actions: list[Action]) -> None:
        client = self._heard_of(event.client_id)
        if client.state in ACTIVE:
            open_id = client.tasks.open_id
            if open_id is not None and open_id not in event.holding and not event.same_connection:
                self._end_task(client, State.WAITING)
                self._forget_versions(actions)
                if self.phase is not Phase.FINISHED:
                    # It takes the place that it had: no draw, and in the same round.
                    self._send_task(client, actions)
            return
        waits_for_its_round = client.unaggregated > 0 and not self.trigger.frees_sender
        self.membership.move(client, State.CONTRIBUTED if waits_for_its_round else State.WAITING)
        self.leases.renew(client.client_id, self.now_s)
        if self.phase is Phase.FINISHED:
            return
        if self.phase is Phase.GATHERING and len(self.membership.active) >= self.settings.clients_to_start:
            actions.append(Evaluate(version=0))
            self._open_round(actions)
        elif self.phase is Phase.IDLE:
            self._open_round(actions)
        else:
            self._give_tasks(actions)
            self._go_on(actions)
        self._watch_leases(actions)

    def _client_left(self, event: ClientLeft, actions: list[Action]) -> None:
        client = self.membership.client(event.client_id)
        if client.state in ACTIVE:
            self._take_out(client, State.LEFT)
            self._forget_versions(actions)
            self._give_tasks(actions)
            self._go_on(actions)
        elif client.state is State.LOST:
            self.membership.move(client, State.LEFT)

    def _task_failed(self, event: TaskFailed, actions: list[Action]) -> None:
        client = self._heard_of(event.client_id)
        if event.task_id == client.tasks.open_id:
            self.failed += 1
            self._end_in_vain(client, actions)

    def _timer_fired(self, event: TimerFired, actions: list[Action]) -> None:
        assert event.timer in self.timers, f"timer {event.timer!r} fired, and it is not set"
        del self.timers[event.timer]
        if event.timer == LEASE:
            self._end_leases(actions)
        elif event.timer == DEADLINE:
            self.deadline_passed = True
        elif self.trigger.in_rounds:
            # The last choice came to nothing: another draw, which may be of others.
            self._start_participants((self.version, self.tasks_given), actions)
        else:
            self._give_tasks(actions)
        self._go_on(actions)
        self._watch_leases(actions)

    def _stop_requested(self, actions: list[Action]) -> None:
        if self.phase is not Phase.FINISHED:
            self._finish("shutdown", actions)

    # Clients and tasks.

    def _heard_of(self, client_id: int) -> Client:
        client = self.membership.client(client_id)
        if client.state in ACTIVE:
            self.leases.renew(client_id, self.now_s)
        return client

    def _take_out(self, client: Client, state: State) -> None:
        if client.tasks.open_id is not None:
            self._end_task(client, state)
        else:
            self.membership.move(client, state)
        self.leases.end(client.client_id)

    def _end_leases(self, actions: list[Action]) -> None:
        silent = self.leases.expired(self.now_s)
        for client_id in silent:
            self._take_out(self.membership.clients[client_id], State.LOST)
        if silent:
            self._forget_versions(actions)
            self._give_tasks(actions)

    def _end_task(self, client: Client, state: State) -> None:
        """Close the open task of a client without an update."""
        client.tasks.open_id = None
        self.references.release(client.base_version)
        self.membership.move(client, state)

    def _end_in_vain(self, client: Client, actions: list[Action]) -> None:
        """Close the open task of a client that could not answer it with an update that counts."""
        self._end_task(client, State.WAITING)
        # After the end right answers are refused too, and say nothing about who can learn.
        if self.phase is not Phase.FINISHED:
            self.fruitless += 1
            client.fruitless += 1
            self.fruitless_in_round += 1
            self._go_on(actions)

    def _send_task(self, client: Client, actions: list[Action]) -> None:
        number = client.tasks.given
        task_id = client.tasks.give()
        client.base_version = self.version
        self.references.take()
        self.tasks_given += 1
        self.membership.move(client, State.WORKING)
        actions.append(
            SendTask(client_id=client.client_id, task_id=task_id, version=self.version, number=number)
        )

    def _give_tasks(self, actions: list[Action], first: tuple[Contribution, ...] = ()) -> None:
        """Fill the selector's places with idle clients, unless participants were chosen when the round
        started.

        first: contributions whose senders come before the other idle clients, in this order.
        """
        waiting = self.membership.waiting
        if not waiting or self.trigger.in_rounds or self.phase not in (Phase.OPEN, Phase.MAKING):
            return
        if self.trigger.frees_sender and self._a_round_waits:
            return
        chosen = self.selector.choose(
            waiting,
            busy=self.membership.busy,
            seed=self.settings.seed,
            key=(self.version, self.tasks_given),
        )
        rank = {contribution.client_id: index for index, contribution in enumerate(first)}
        for client_id in sorted(chosen, key=lambda client_id: rank.get(client_id, len(rank))):
            self._send_task(self.membership.clients[client_id], actions)

    @property
    def _a_round_waits(self) -> bool:
        """Whether a whole round is pending behind the one in the making, or behind the one that closes as soon
        as tasks have been given."""
        round_size = self.settings.round_size_max
        taken_next = round_size if self.phase is Phase.OPEN else 0
        return len(self.pending) - taken_next >= round_size

    # Rounds.

    def _open_round(self, actions: list[Action], first: tuple[Contribution, ...] = ()) -> None:
        self.round_started_s = self.now_s
        self.phase = Phase.OPEN
        if not self.trigger.in_rounds:
            self._give_tasks(actions, first)
        elif self.membership.active or self.pending:
            self._start_participants((self.version,), actions)
            self.deadline_passed = False
            if self.trigger.wait_s is not None:
                self._set_timer(DEADLINE, self.now_s + self.trigger.wait_s, actions)
        else:
            self.phase = Phase.IDLE
        self._go_on(actions)

    def _start_participants(self, key: tuple[int, ...], actions: list[Action]) -> None:
        """Give tasks to the selected clients; a straggler among them works on, and takes part with what it
        has. key: of the draw."""
        self.fruitless_in_round = 0
        active = self.membership.active
        for client_id in self.selector.choose(active, busy=0, seed=self.settings.seed, key=key):
            client = self.membership.clients[client_id]
            if client.state is State.WAITING:
                self._send_task(client, actions)

    @property
    def _stalled(self) -> bool:
        """Whether everyone active is idle, and neither an event to come nor a round without updates would be
        of use to them."""
        return (
            self.phase is Phase.OPEN
            and not self.pending
            and self.membership.outstanding == 0
            and bool(self.membership.active)
            and (self.fruitless_in_round > 0 or not self.trigger.in_rounds)
        )

    def _go_on(self, actions: list[Action]) -> None:
        """After anything that may have freed a version, completed a round, or left nobody at work."""
        self._forget_versions(actions)
        if self.phase is Phase.OPEN and not self._stalled:
            outstanding = self._awaited()
            if not self.pending.ready and outstanding == 0 and self.pending:
                self.pending.end_cycle()
                outstanding = self._awaited()
            take = self.trigger.take(
                pending=self.pending.ready, outstanding=outstanding, due=self.deadline_passed
            )
            if take is not None:
                self._close_round(take, actions)
        self._watch_for_stall(actions)

    def _awaited(self) -> int:
        """Open tasks whose updates the round may wait for: once a cycle, not those of clients that have had their
        turn."""
        if not self.pending.once_a_cycle:
            return self.membership.outstanding
        clients = self.membership.clients
        return sum(
            clients[client_id].state is State.WORKING and client_id not in self.pending.contributed
            for client_id in self.membership.active
        )

    def _close_round(self, take: int, actions: list[Action]) -> None:
        self.making = tuple(Contribution.of(update, self.version) for update in self.pending.take(take))
        self.phase = Phase.MAKING
        actions.append(ApplyRound(version=self.version, contributions=self.making))
        if self.trigger.cuts_off:
            for client_id in self.membership.active:
                client = self.membership.clients[client_id]
                if client.tasks.open_id is not None:
                    self._end_task(client, State.WAITING)

    def _forget_versions(self, actions: list[Action]) -> None:
        unneeded = self.references.unneeded()
        if unneeded and self.phase is not Phase.FINISHED:
            actions.extend(ForgetVersion(version=version) for version in unneeded)

    def _finish(self, reason: str, actions: list[Action]) -> None:
        self.phase = Phase.FINISHED
        for timer in sorted(self.timers):
            self._cancel_timer(timer, actions)
        actions.append(Finish(version=self.version, reason=reason))

    # Timers.

    def _watch_leases(self, actions: list[Action]) -> None:
        """Have a timer set while there are leases: due no later than the oldest, and moved on when it
        fires."""
        expiry_s = self.leases.next_expiry_s()
        if LEASE not in self.timers and expiry_s < math.inf:
            self._set_timer(LEASE, expiry_s, actions)

    def _watch_for_stall(self, actions: list[Action]) -> None:
        """Have a timer set exactly while the round has stalled."""
        stalled = self._stalled
        if stalled and RETRY not in self.timers:
            self._set_timer(RETRY, self.now_s + self.settings.retry_s, actions)
        elif not stalled and RETRY in self.timers:
            self._cancel_timer(RETRY, actions)

    def _set_timer(self, timer: str, due_s: float, actions: list[Action]) -> None:
        self.timers[timer] = due_s
        actions.append(SetTimer(timer=timer, due_s=due_s))

    def _cancel_timer(self, timer: str, actions: list[Action]) -> None:
        del self.timers[timer]
        actions.append(CancelTimer(timer=timer))
