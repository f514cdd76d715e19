"""The coordinator's state machine: events in, actions out. It decides who works on a task and when a round closes."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from unstale.coordinator import events
from unstale.coordinator.actions import (
    Acknowledge,
    Action,
    ApplyRound,
    DiscardUpdate,
    Evaluate,
    Finish,
    Outcome,
    SetTimer,
)
from unstale.coordinator.admission import validate
from unstale.coordinator.membership import ACTIVE, Client, State
from unstale.coordinator.phase import Phase
from unstale.coordinator.state import DEADLINE as DEADLINE
from unstale.coordinator.state import LEASE as LEASE
from unstale.coordinator.state import RETRY as RETRY
from unstale.coordinator.state import CoordinatorState

Handler = Callable[[Any, Any, list[Action]], None]
"""Takes the coordinator, an event, and a list to which it adds actions."""
Handlers = dict[type[events.Event], Handler]


class Transition(NamedTuple):
    """Handler of an event in one phase, and the phases that may follow."""

    handler: Handler
    next_phases: tuple[Phase, ...]


def _row(handlers: Handlers, *next_phases: Phase) -> dict[type[events.Event], Transition]:
    return {kind: Transition(handler, next_phases) for kind, handler in handlers.items()}


class Coordinator(CoordinatorState):
    """The state machine. Only `handle` changes its state; every attribute may be read at any time."""

    @property
    def clients_by_state(self) -> dict[str, int]:
        """Number of clients in each state, by its name in lower case."""
        return {state.name.lower(): self.membership.counts[state] for state in State}

    @property
    def updates_by_outcome(self) -> dict[str, int]:
        """Number of updates by outcome."""
        return {
            Outcome.ACCEPTED.value: self.accepted,
            Outcome.DUPLICATE.value: self.duplicates,
            Outcome.REJECTED.value: self.rejected,
        }

    def is_active(self, client_id: int) -> bool:
        """Whether a client has joined, and has neither left nor been lost since."""
        return self.membership.client(client_id).state in ACTIVE

    def awaits(self, client_id: int, task_id: int) -> bool:
        """Whether the task of a client is open."""
        return self.membership.client(client_id).tasks.open_id == task_id

    def accepted_task(self, client_id: int) -> int:
        """Id of a client's newest task whose update was accepted; 0 for none."""
        return self.membership.client(client_id).tasks.accepted_id

    def handle(self, event: events.Event) -> list[Action]:
        """Handle an event.

        Returns actions in this order: Acknowledge, DiscardUpdate; ForgetVersion, ascending; Evaluate; SendTask and
        ApplyRound; among these, timers. The end of the run is CancelTimer, then Finish. Raises AssertionError where
        `TRANSITIONS` does not allow the event in this phase, or the event contradicts the state.
        """
        assert event.at_s >= self.now_s, f"time went back from {self.now_s} to {event.at_s}"
        transition = self.TRANSITIONS[self.phase].get(type(event))
        assert transition is not None, f"phase {self.phase} does not allow {event}"
        self.now_s = event.at_s
        actions: list[Action] = []
        handler, next_phases = transition
        handler(self, event, actions)
        assert self.phase in next_phases, f"phase {self.phase} may not follow {event}"
        return actions

    def _update_arrived(self, update: events.UpdateArrived, actions: list[Action]) -> None:
        client = self._renew_lease(update.client_id)
        answers_open_task = update.task_id == client.tasks.open_id
        verdict, repeated = validate(client.tasks, client.base_version, update, finished=self.phase is Phase.FINISHED)
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

    def _accept(self, client: Client, update: events.UpdateArrived, actions: list[Action]) -> None:
        assert update.handle >= 0, "an update without a defect is staged under a handle"
        self.accepted += 1
        self.consecutive_failures = client.consecutive_failures = client.code_errors = client.expired = 0
        self.pending.append(update)
        client.unaggregated += 1
        if self.trigger.frees_sender:
            self.tasks.close_with_update(client, State.WAITING)
            self._give_tasks(actions)
        else:
            self.tasks.close_with_update(client, State.CONTRIBUTED)
        self._check_round(actions)

    def _round_applied(self, event: events.RoundApplied, actions: list[Action]) -> None:
        contributions = self._count_round(event)
        if self.phase is Phase.FINISHED:  # the run was stopped meanwhile
            return
        self._forget_versions(actions)
        is_last = self.version == self.settings.rounds
        if is_last or self.version % self.settings.evaluate_every == 0:
            actions.append(Evaluate(version=self.version))
        if is_last:
            self._finish("finished", actions)
        else:
            self._open_round(actions, first=contributions)

    def _client_joined(self, event: events.ClientJoined, actions: list[Action]) -> None:
        if self._is_rejoining(event, actions) or self.phase is Phase.FINISHED:
            return
        if self.phase is Phase.GATHERING:
            if len(self.membership.active) >= self.settings.clients_to_start:
                actions.append(Evaluate(version=self.version))
                self._open_round(actions)
        elif self.phase is Phase.IDLE:
            self._open_round(actions)
        else:
            self._give_tasks(actions)
            self._check_round(actions)
        self._watch_leases(actions)

    def _is_rejoining(self, event: events.ClientJoined, actions: list[Action]) -> bool:
        """Whether the client was active already. Replaces a task that it has lost; otherwise makes it active."""
        client = self._renew_lease(event.client_id)
        if client.state in ACTIVE:
            open_id = client.tasks.open_id
            if open_id is not None and open_id not in event.holding and not event.same_connection:
                self._replace_task(client, actions)
            return True
        if client.unaggregated > 0 and not self.trigger.frees_sender:
            state = State.CONTRIBUTED
        else:
            state = State.UNAVAILABLE if client.client_id in self.membership.sits_out else State.WAITING
        self.membership.move(client, state)
        self.leases.renew(client.client_id, self.now_s)
        return False

    def _client_left(self, event: events.ClientLeft, actions: list[Action]) -> None:
        client = self.membership.client(event.client_id)
        if client.state in ACTIVE:
            self._deactivate(client, State.LEFT)
            self._forget_versions(actions)
            self._give_tasks(actions)
            self._check_round(actions)
        elif client.state is State.LOST:
            self.membership.move(client, State.LEFT)

    def _heartbeat_received(self, event: events.HeartbeatReceived, _: list[Action]) -> None:
        self._renew_lease(event.client_id)

    def _task_failed(self, event: events.TaskFailed | events.TaskRaised, actions: list[Action]) -> None:
        client = self._renew_lease(event.client_id)
        if event.task_id == client.tasks.open_id:
            self.failed += 1
            self._end_without_update(client, actions, raised=isinstance(event, events.TaskRaised))

    def _task_declined(self, event: events.TaskDeclined, actions: list[Action]) -> None:
        client = self._renew_lease(event.client_id)
        if event.task_id == client.tasks.open_id:
            self.declined += 1
            self._take_back(client, actions)

    def _task_expired(self, event: events.TaskExpired, actions: list[Action]) -> None:
        client = self.membership.client(event.client_id)
        if event.task_id == client.tasks.open_id:
            self.failed += 1
            self.membership.sit_out(client, self.version)
            self._take_back(client, actions)

    def _task_lost(self, event: events.TaskLost, actions: list[Action]) -> None:
        client = self._renew_lease(event.client_id)
        if event.task_id == client.tasks.open_id:
            self._replace_task(client, actions)

    def _timer_fired(self, event: events.TimerFired, actions: list[Action]) -> None:
        assert event.timer in self.timers, f"timer {event.timer!r} fired, and it is not set"
        del self.timers[event.timer]
        if event.timer == LEASE:
            self._end_leases(actions)
        elif event.timer == DEADLINE:
            self.round.deadline_passed = True
        else:
            self._retry(actions)
        self._check_round(actions)
        self._watch_leases(actions)

    def _resumed(self, _: events.Resumed, actions: list[Action]) -> None:
        """Renew all leases; repeat timers and the round in the making. Clients ask for their tasks themselves."""
        self._renew_leases()
        if self.phase is Phase.FINISHED:
            reason = "finished" if self.version >= self.settings.rounds else "reached"
            actions.append(Finish(version=self.version, reason=reason))
            return
        self.timers.pop(LEASE, None)
        actions.extend(SetTimer(timer=timer, due_s=due_s) for timer, due_s in self.timers.items())
        self._watch_leases(actions)
        if self.making is not None:
            actions.append(ApplyRound(version=self.version, contributions=self.making))

    def _stop_requested(self, _: events.StopRequested, actions: list[Action]) -> None:
        if self.phase is not Phase.FINISHED:
            self._finish("shutdown", actions)

    def _target_reached(self, _: events.TargetReached, actions: list[Action]) -> None:
        if self.phase is not Phase.FINISHED:
            self._finish("reached", actions)

    _ENDS_TASK: ClassVar[Handlers] = {
        events.UpdateArrived: _update_arrived,
        events.TaskFailed: _task_failed,
        events.TaskRaised: _task_failed,
        events.TaskDeclined: _task_declined,
        events.TaskExpired: _task_expired,
        events.ClientLeft: _client_left,
    }
    _MAY_COMPLETE: ClassVar[Handlers] = {**_ENDS_TASK, events.TimerFired: _timer_fired}
    # These never change the phase.
    _NEUTRAL: ClassVar[Handlers] = {
        events.HeartbeatReceived: _heartbeat_received,
        events.TaskLost: _task_lost,
        events.Resumed: _resumed,
    }
    _JOIN: ClassVar[Handlers] = {events.ClientJoined: _client_joined}
    _STOP: ClassVar[Handlers] = {events.StopRequested: _stop_requested, events.TargetReached: _target_reached}
    _APPLIED: ClassVar[Handlers] = {events.RoundApplied: _round_applied}

    TRANSITIONS: ClassVar[Mapping[Phase, Mapping[type[events.Event], Transition]]] = {
        Phase.GATHERING: {
            **_row(_JOIN, Phase.GATHERING, Phase.OPEN, Phase.MAKING),
            **_row({**_MAY_COMPLETE, **_NEUTRAL}, Phase.GATHERING),
            **_row(_STOP, Phase.FINISHED),
        },
        Phase.IDLE: {
            **_row(_JOIN, Phase.OPEN, Phase.MAKING),
            **_row({**_MAY_COMPLETE, **_NEUTRAL}, Phase.IDLE),
            **_row(_STOP, Phase.FINISHED),
        },
        Phase.OPEN: {
            **_row({**_MAY_COMPLETE, **_JOIN}, Phase.OPEN, Phase.MAKING),
            **_row(_NEUTRAL, Phase.OPEN),
            **_row(_STOP, Phase.FINISHED),
        },
        Phase.MAKING: {
            **_row(_APPLIED, Phase.OPEN, Phase.MAKING, Phase.IDLE, Phase.FINISHED),
            **_row({**_MAY_COMPLETE, **_JOIN, **_NEUTRAL}, Phase.MAKING),
            **_row(_STOP, Phase.FINISHED),
        },
        Phase.FINISHED: _row({**_ENDS_TASK, **_JOIN, **_NEUTRAL, **_APPLIED, **_STOP}, Phase.FINISHED),
    }
    """Handler of each event by phase; an event that is missing is not allowed in that phase."""
