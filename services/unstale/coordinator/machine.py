"""The coordinator: who works on what, and when a round closes. Events in, actions out, and nothing else.

`phase.py` has the table of its phases.
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
    SetTimer,
)
from unstale.coordinator.admission import judge
from unstale.coordinator.events import (
    ClientJoined,
    ClientLeft,
    Event,
    HeartbeatReceived,
    Resumed,
    RoundApplied,
    StopRequested,
    TaskDeclined,
    TaskExpired,
    TaskFailed,
    TaskLost,
    TimerFired,
    UpdateArrived,
)
from unstale.coordinator.leases import Leases
from unstale.coordinator.membership import ACTIVE, Client, Membership, State
from unstale.coordinator.pending import Pending
from unstale.coordinator.phase import Phase
from unstale.coordinator.rounds import OpenRound
from unstale.coordinator.settings import CoordinatorSettings
from unstale.coordinator.tasks import Tasks

LEASE = "lease"  # the oldest lease may have run out
DEADLINE = "deadline"  # the round has lasted as long as it should
RETRY = "retry"  # the round has stalled: give tasks again


class Coordinator:
    """The state machine. State changes only in `handle`; everything may be read at any time.

    version: rounds applied. pending: accepted updates that no round holds yet, in order of arrival. making: the round
    that the learner was told to apply, None when there is none. round_started_s: when the last round was opened, in
    the shell's seconds. accepted, aggregated, rejected, duplicates: updates so far, with accepted = aggregated +
    pending + those in the making. failed, declined: tasks so far that clients gave back (TaskFailed, TaskDeclined);
    expired ones count as failed. consecutive_failures: tasks in a row that their clients could not answer with an
    update that counts, because they failed or the update was refused; an accepted update starts the row anew, and tasks
    that were declined or taken back are not in it. A shell may end a run in which it grows without end. timers: those
    set, and when they are due. tasks: who is given one. references: which versions somebody still needs. round: the one
    that is open.

    An accepted update is unaggregated until RoundApplied; `settings.unaggregated_max` bounds how many there
    are.
    """

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self._round_size = settings.round_size_max
        self.trigger = settings.trigger_part
        self.membership = Membership(settings.clients)
        self.leases = Leases(settings.lease_s)
        self.tasks = Tasks(settings, self.membership)
        self.references = self.tasks.references
        self.pending = Pending(settings.clients, once_a_cycle=settings.once_a_cycle)
        self.round = OpenRound(self.trigger, self.membership, self.pending)
        self.making: tuple[Contribution, ...] | None = None
        self.timers: dict[str, float] = {}
        self.phase = Phase.GATHERING
        self.round_started_s: float | None = None
        self.now_s = 0.0
        self.accepted = 0
        self.aggregated = 0
        self.rejected = 0
        self.duplicates = 0
        self.failed = 0
        self.declined = 0
        self.consecutive_failures = 0

    @property
    def version(self) -> int:
        """Rounds applied so far, and so the current version of the model."""
        return self.references.current

    @property
    def tasks_given(self) -> int:
        """Tasks given so far."""
        return self.tasks.given

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
            case TaskDeclined() | TaskExpired():
                self._task_declined(event, actions)
            case TaskLost():
                self._task_lost(event, actions)
            case TimerFired():
                self._timer_fired(event, actions)
            case StopRequested():
                self._stop_requested(actions)
            case Resumed():
                self._resumed(actions)
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
            self._end_without_update(client, actions)

    def _accept(self, client: Client, update: UpdateArrived, actions: list[Action]) -> None:
        assert update.handle >= 0, "an update without a defect lies staged under a handle"
        self.accepted += 1
        self.consecutive_failures = client.consecutive_failures = client.expired = 0
        self.pending.append(update)
        client.unaggregated += 1
        if self.trigger.frees_sender:
            self.tasks.answer(client, State.WAITING)
            self._give_tasks(actions)
        else:
            self.tasks.answer(client, State.CONTRIBUTED)
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
        self.membership.ask_everyone_again(self.version)
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
                self._replace_task(client, actions)
            return
        waits_for_its_round = client.unaggregated > 0 and not self.trigger.frees_sender
        idle = self.membership.idle(client)
        self.membership.move(client, State.CONTRIBUTED if waits_for_its_round else idle)
        self.leases.renew(client.client_id, self.now_s)
        if self.phase is Phase.FINISHED:
            return
        if self.phase is Phase.GATHERING and len(self.membership.active) >= self.settings.clients_to_start:
            actions.append(Evaluate(version=self.version))
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
            self._end_without_update(client, actions)

    def _task_declined(self, event: TaskDeclined | TaskExpired, actions: list[Action]) -> None:
        client = self.membership.client(event.client_id)
        if isinstance(event, TaskDeclined):
            self._heard_of(event.client_id)
        if event.task_id == client.tasks.open_id:
            self.tasks.close(client, State.UNAVAILABLE)
            if isinstance(event, TaskExpired):
                self.failed += 1
                self.membership.sit_out(client, self.version)
            else:
                self.declined += 1
            self._forget_versions(actions)
            if self.trigger.in_rounds and self.phase is Phase.OPEN:
                actions.extend(self.tasks.to_another(passed_over=self.round.failed_clients))
            self._give_tasks(actions)
            self._go_on(actions)

    def _task_lost(self, event: TaskLost, actions: list[Action]) -> None:
        client = self._heard_of(event.client_id)
        if event.task_id == client.tasks.open_id:
            self._replace_task(client, actions)

    def _timer_fired(self, event: TimerFired, actions: list[Action]) -> None:
        assert event.timer in self.timers, f"timer {event.timer!r} fired, and it is not set"
        del self.timers[event.timer]
        if event.timer == LEASE:
            self._end_leases(actions)
        elif event.timer == DEADLINE:
            self.round.deadline_passed = True
        else:
            self._play_again(actions)
        self._go_on(actions)
        self._watch_leases(actions)

    def _stop_requested(self, actions: list[Action]) -> None:
        if self.phase is not Phase.FINISHED:
            self._finish("shutdown", actions)

    def _resumed(self, actions: list[Action]) -> None:
        """Say again what the shell has to know, and nothing that clients will ask for themselves."""
        for client_id in list(self.leases.last_seen_s):
            self.leases.renew(client_id, self.now_s)
        if self.phase is Phase.FINISHED:
            actions.append(Finish(version=self.version, reason="finished"))
            return
        self.timers.pop(LEASE, None)
        actions.extend(SetTimer(timer=timer, due_s=due_s) for timer, due_s in self.timers.items())
        self._watch_leases(actions)
        if self.making is not None:
            actions.append(ApplyRound(version=self.version, contributions=self.making))

    # Clients and tasks.

    def _heard_of(self, client_id: int) -> Client:
        client = self.membership.client(client_id)
        if client.state in ACTIVE:
            self.leases.renew(client_id, self.now_s)
        return client

    def _take_out(self, client: Client, state: State) -> None:
        if client.tasks.open_id is not None:
            self.tasks.close(client, state)
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

    def _end_without_update(self, client: Client, actions: list[Action]) -> None:
        """Close the open task of a client that could not answer it with an update that counts."""
        self.tasks.close(client, State.WAITING)
        # After the end right answers are refused too, and say nothing about who can learn.
        if self.phase is not Phase.FINISHED:
            self.consecutive_failures += 1
            client.consecutive_failures += 1
            self.round.failed_clients.add(client.client_id)
            self._go_on(actions)

    def _replace_task(self, client: Client, actions: list[Action]) -> None:
        """Give a client another task in the place of its open one, which never reached it: no draw, and in the same
        round."""
        self.tasks.close(client, State.WAITING)
        self._forget_versions(actions)
        if self.phase is not Phase.FINISHED:
            actions.append(self.tasks.give(client))

    def _give_tasks(self, actions: list[Action], first: tuple[Contribution, ...] = ()) -> None:
        """Give tasks to idle clients where there are places, unless participants were chosen when the round started.

        first: contributions whose senders come before the other idle clients, in this order.
        """
        if self.trigger.in_rounds or self.phase not in (Phase.OPEN, Phase.MAKING):
            return
        if self.trigger.frees_sender:
            # Not while a whole round waits behind the one in the making, or behind the one that closes as soon as tasks
            # have been given. All that is pending is ready: where senders are freed, there are no cycles.
            rounds = 2 if self.phase is Phase.OPEN else 1
            if self.pending.ready >= rounds * self._round_size:
                return
        actions.extend(self.tasks.to_idle(first))

    # Rounds.

    def _open_round(self, actions: list[Action], first: tuple[Contribution, ...] = ()) -> None:
        self.round_started_s = self.now_s
        self.phase = Phase.OPEN
        self.round.begin()
        if not self.trigger.in_rounds:
            self._give_tasks(actions, first)
        elif self.membership.active or self.pending:
            actions.extend(self.tasks.to_participants())
            if self.trigger.wait_s is not None:
                self._set_timer(DEADLINE, self.now_s + self.trigger.wait_s, actions)
        else:
            self.phase = Phase.IDLE
        self._go_on(actions)

    def _play_again(self, actions: list[Action]) -> None:
        """End the pause of a round that has stalled: give tasks again, unless somebody declined and the round can close
        without updates. Only a new version asks those again, and who fails every time must not keep it from them."""
        self.round.failed_clients.clear()
        self.membership.end_sitting_out()
        if self.membership.unavailable and self.round.take() is not None:
            return
        if self.trigger.in_rounds:
            actions.extend(self.tasks.to_participants(again=True))
        else:
            self._give_tasks(actions)

    def _go_on(self, actions: list[Action]) -> None:
        """After anything that may have freed a version, completed a round, or left nobody at work."""
        if self.references.dropped:
            self._forget_versions(actions)
        # Mostly somebody works, and then the round need not be asked.
        nobody_works = self.membership.counts[State.WORKING] == 0
        stalled = nobody_works and self.phase is Phase.OPEN and self.round.stalled
        if self.phase is Phase.OPEN and not stalled:
            take = self.round.take()
            if take is not None:
                self._close_round(take, actions)
        # A round that has not stalled has not after this either, whether it was closed or stays open.
        if stalled is not (RETRY in self.timers):
            self._watch_for_stall(actions, stalled=stalled)

    def _close_round(self, take: int, actions: list[Action]) -> None:
        version = self.version
        self.making = self.pending.take(take, version)
        self.phase = Phase.MAKING
        actions.append(ApplyRound(version=version, contributions=self.making))
        if self.trigger.cuts_off:
            for client_id in self.membership.active:
                client = self.membership.clients[client_id]
                if client.tasks.open_id is not None:
                    self.tasks.close(client, State.WAITING)

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

    def _watch_for_stall(self, actions: list[Action], *, stalled: bool) -> None:
        """Set the timer that is set exactly while the round has stalled, or cancel it: whichever is due."""
        if stalled:
            self._set_timer(RETRY, self.now_s + self.settings.retry_s, actions)
        else:
            self._cancel_timer(RETRY, actions)

    def _set_timer(self, timer: str, due_s: float, actions: list[Action]) -> None:
        self.timers[timer] = due_s
        actions.append(SetTimer(timer=timer, due_s=due_s))

    def _cancel_timer(self, timer: str, actions: list[Action]) -> None:
        del self.timers[timer]
        actions.append(CancelTimer(timer=timer))
