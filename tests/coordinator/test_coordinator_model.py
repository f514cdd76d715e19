"""Any order of valid and invalid events: the invariants hold after each, no update is lost or counted twice,
and once the faults stop the run finishes."""

import math
from typing import ClassVar

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support import coordinator_invariants as invariants
from unstale.coordinator import actions, events
from unstale.coordinator.machine import RETRY, Coordinator
from unstale.coordinator.phase import Phase
from unstale.coordinator.settings import CoordinatorSettings
from unstale.coordinator.triggers import TRIGGERS
from unstale.settings.learning import SelectorSettings, TriggerSettings

LEASE_S, WAIT_S, RETRY_S = 10.0, 4.0, 2.0
ORDER = (
    actions.Acknowledge,
    actions.DiscardUpdate,
    actions.ForgetVersion,
    actions.Evaluate,
    actions.SendTask,
    actions.ApplyRound,
    actions.Finish,
)


@st.composite
def all_settings(draw: st.DrawFn, name: str) -> CoordinatorSettings:
    clients = draw(st.integers(1, 5))
    size = draw(st.none() | st.integers(1, clients))
    in_rounds = TRIGGERS[name].in_rounds
    sized = ("random", "availability", "round-robin") if in_rounds else ("random", "availability")
    stale = st.dictionaries(st.integers(0, clients - 1), st.integers(1, 3)) if in_rounds else st.just({})
    k_max = clients if size is None or name == "buffered" else size
    return CoordinatorSettings(
        clients=clients,
        rounds=draw(st.integers(1, 8)),
        trigger=TriggerSettings(
            name=name,
            k=draw(st.integers(1, k_max)) if name in ("k-sync", "k-async", "buffered") else None,
            wait_s=WAIT_S if name == "deadline" else None,
        ),
        selector=SelectorSettings(name="all" if size is None else draw(st.sampled_from(sized)), size=size),
        availability=tuple(0.5 + index % 2 / 4 for index in range(clients)),
        seed=draw(st.integers(0, 3)),
        lease_s=LEASE_S,
        evaluate_every=draw(st.integers(1, 3)),
        retry_s=RETRY_S,
        min_clients=draw(st.none() | st.integers(1, clients)),
        once_a_cycle=name in ("k-async", "async") and size is None and draw(st.booleans()),
        stale_rounds=draw(stale),
    )


class Shell(RuleBasedStateMachine):
    """Clients, network and learner with faults.

    given: (client, task id) -> version, for every task that was sent. newest: the last task that each client
    was sent. arrived: accepted updates as (client, task id, handle, base version), in order of arrival.
    waiting: those in no round yet. had_turn: clients with a turn in this cycle, where the run has cycles.
    consecutive_failures: tasks in a row that ended without an accepted update, by a failure or a refusal; has_failed:
    whether one did since the round was opened or retried. unavailable: the version in which a client last declined
    a task, unless it has left or been lost since.
    """

    trigger: ClassVar[str]

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        chosen = data.draw(all_settings(self.trigger))
        self.coordinator = Coordinator(chosen)
        self.clients = chosen.clients
        self.now_s = 0.0
        self.given: dict[tuple[int, int], int] = {}
        self.newest: dict[int, int] = {}
        self.arrived: list[tuple[int, int, int, int]] = []
        self.waiting: list[tuple[int, int, int, int]] = []
        self.had_turn: set[int] = set()
        self.consecutive_failures = 0
        self.declined = 0
        self.unavailable: dict[int, int] = {}
        self.has_failed = False
        self.handles = 0
        self.free_handles: set[int] = set()
        self.first_verdicts: dict[tuple[int, int], tuple[str, str | None]] = {}
        self.forgotten: set[int] = set()
        self.timers: dict[str, float] = {}
        self.making = False
        self.finished = False

    # Actions of the clients and the operator.

    @rule(client=st.integers(0, 4), holds=st.booleans(), same_connection=st.booleans())
    def join(self, client: int, holds: bool, same_connection: bool) -> None:
        client %= self.clients
        holding = (self.newest[client],) if holds and client in self.newest else ()
        self.feed(
            events.ClientJoined(client_id=client, at_s=self.now_s, holding=holding, same_connection=same_connection)
        )

    @rule()
    def all_join(self) -> None:
        for client in range(self.clients):
            self.join(client, holds=True, same_connection=False)

    @rule(client=st.integers(0, 4))
    def leave(self, client: int) -> None:
        self.feed(events.ClientLeft(client_id=client % self.clients, at_s=self.now_s))

    @rule(client=st.integers(0, 4))
    def beat(self, client: int) -> None:
        self.feed(events.HeartbeatReceived(client_id=client % self.clients, at_s=self.now_s))

    @precondition(lambda self: self.newest)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.newest)))
        self.send(client, self.newest[client])

    @precondition(lambda self: self.newest)
    @rule(times=st.integers(1, 4))
    def all_busy_clients_answer(self, times: int) -> None:
        """Fast clients: all answer before an aggregation ends."""
        for _ in range(times):
            for client in self.coordinator.membership.clients:
                if client.tasks.open_id is not None:
                    self.send(client.client_id, client.tasks.open_id)
                    self.everything_fits()

    @precondition(lambda self: self.newest)
    @rule()
    def all_busy_clients_fail(self) -> None:
        for client in self.coordinator.membership.clients:
            if client.tasks.open_id is not None:
                self.feed(events.TaskFailed(client_id=client.client_id, task_id=client.tasks.open_id, at_s=self.now_s))
                self.everything_fits()

    @precondition(lambda self: self.given)
    @rule(data=st.data(), defect=st.none() | st.just("non-finite"), version_off=st.sampled_from([0, 0, 1, -1]))
    def answer_any_task(self, data: st.DataObject, defect: str | None, version_off: int) -> None:
        client, task_id = data.draw(st.sampled_from(sorted(self.given)))
        self.send(client, task_id, version_off=version_off, defect=defect)

    @rule(client=st.integers(0, 4), task_id=st.integers(-3, 60))
    def answer_a_made_up_task(self, client: int, task_id: int) -> None:
        client %= self.clients
        if (client, task_id) not in self.given:
            self.send(client, task_id)

    @precondition(lambda self: self.newest)
    @rule(data=st.data(), kind=st.sampled_from([events.TaskFailed, events.TaskRaised]))
    def fail(self, data: st.DataObject, kind: type[events.TaskFailed | events.TaskRaised]) -> None:
        client, task_id = data.draw(st.sampled_from(sorted(self.given)))
        self.feed(kind(client_id=client, task_id=task_id, at_s=self.now_s))

    @precondition(lambda self: self.newest)
    @rule(data=st.data())
    def decline(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.newest)))
        self.feed_declined(client, self.newest[client])

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def decline_some_task(self, data: st.DataObject) -> None:
        self.feed_declined(*data.draw(st.sampled_from(sorted(self.given))))

    @precondition(lambda self: self.newest)
    @rule()
    def all_busy_clients_decline(self) -> None:
        """One after the other, including the clients that replace them."""
        for _ in range(self.clients):
            for client in self.coordinator.membership.clients:
                if client.tasks.open_id is not None:
                    self.feed_declined(client.client_id, client.tasks.open_id)
                    self.everything_fits()

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def lose_a_task(self, data: st.DataObject) -> None:
        client, task_id = data.draw(st.sampled_from(sorted(self.given)))
        awaited = self.coordinator.awaits(client, task_id) and not self.finished
        number = self.coordinator.tasks.count
        self.feed(events.TaskLost(client_id=client, task_id=task_id, at_s=self.now_s))
        # Exactly then another task replaces it, and the client stays busy.
        assert self.coordinator.tasks.count == number + awaited
        assert not awaited or self.newest[client] > task_id

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while due := [(due_s, timer) for timer, due_s in self.timers.items() if due_s <= until_s]:
            due_s, timer = min(due)
            self.fire(timer, due_s)
        self.now_s = until_s

    @precondition(lambda self: self.making)
    @rule()
    def apply(self) -> None:
        self.making = False
        self.feed(events.RoundApplied(version=self.coordinator.version + 1, at_s=self.now_s))

    @precondition(lambda self: not self.finished)
    @rule(really=st.sampled_from([False] * 9 + [True]))
    def stop(self, really: bool) -> None:
        if really:
            self.feed(events.StopRequested(at_s=self.now_s))

    # Invariants.

    @invariant()
    def everything_fits(self) -> None:
        invariants.check(self.coordinator)
        assert self.timers == self.coordinator.timers
        assert self.coordinator.accepted == len(self.arrived)
        assert self.coordinator.consecutive_failures == self.consecutive_failures
        assert self.coordinator.declined == self.declined
        assert self.coordinator.updates_by_outcome["rejected"] >= sum(
            verdict != "accepted" for verdict, _ in self.first_verdicts.values()
        )
        assert {update.handle for update in self.coordinator.pending} == {handle for _, _, handle, _ in self.waiting}
        # Every staged handle is either released or belongs to an accepted update.
        kept = {handle for _, _, handle, _ in self.arrived}
        assert kept.isdisjoint(self.free_handles)
        assert kept | self.free_handles == set(range(1, self.handles + 1))

    def teardown(self) -> None:
        """Without faults every client is active and answers. Then the run ends within the steps that it
        takes."""
        if not hasattr(self, "coordinator") or self.finished:
            return
        for client in range(self.clients):
            holding = (self.newest[client],) if client in self.newest else ()
            self.feed(events.ClientJoined(client_id=client, at_s=self.now_s, holding=holding))
        for _ in range(20 * self.clients * self.coordinator.settings.rounds + 20):
            if self.finished:
                break
            if self.making:
                self.apply()
            elif working := [client for client in self.coordinator.membership.clients if client.tasks.open_id]:
                self.send(working[0].client_id, working[0].tasks.open_id)
            else:
                for client in range(self.clients):
                    self.beat(client)
                due_s, timer = min((due_s, timer) for timer, due_s in self.timers.items())
                self.fire(timer, due_s)
            self.everything_fits()
        assert self.finished
        assert self.coordinator.version == self.coordinator.settings.rounds

    # The shell.

    def send(self, client: int, task_id: int, *, version_off: int = 0, defect: str | None = None) -> None:
        base_version = self.given.get((client, task_id), 0) + version_off
        self.handles += 1
        self.offered = (client, task_id, self.handles, base_version)
        self.sound = defect is None and version_off == 0
        self.feed(
            events.UpdateArrived(
                client_id=client,
                task_id=task_id,
                base_version=base_version,
                handle=self.handles,
                at_s=self.now_s,
                defect=defect,
            )
        )

    def feed_declined(self, client: int, task_id: int) -> None:
        if self.coordinator.awaits(client, task_id):
            self.declined += 1
            self.unavailable[client] = self.coordinator.version
        self.feed(events.TaskDeclined(client_id=client, task_id=task_id, at_s=self.now_s))

    def fire(self, timer: str, due_s: float) -> None:
        self.now_s = max(self.now_s, due_s)
        del self.timers[timer]
        self.feed(events.TimerFired(timer=timer, at_s=self.now_s))

    def feed(self, event: events.Event) -> None:
        was_finished = self.finished
        if not was_finished and self.ends_without_update(event):
            self.consecutive_failures += 1
            self.has_failed = True
        if isinstance(event, events.RoundApplied) or event == events.TimerFired(timer=RETRY, at_s=self.now_s):
            self.has_failed = False
        issued = self.coordinator.handle(event)
        for action in issued:
            self.perform(action)
        self.unavailable = {
            client: version for client, version in self.unavailable.items() if self.coordinator.is_active(client)
        }
        if self.coordinator.phase is Phase.OPEN and self.waiting and self.is_cycle_over:
            self.had_turn.clear()
        if was_finished:
            assert all(isinstance(action, actions.Acknowledge | actions.DiscardUpdate) for action in issued)
        # The documented order of the actions of `handle`, except timers.
        order = [ORDER.index(type(action)) for action in issued if type(action) in ORDER]
        assert order == sorted(order)
        acknowledged = sum(isinstance(action, actions.Acknowledge) for action in issued)
        assert acknowledged == isinstance(event, events.UpdateArrived)

    def ends_without_update(self, event: events.Event) -> bool:
        if not isinstance(event, events.UpdateArrived | events.TaskFailed | events.TaskRaised):
            return False
        if not self.coordinator.awaits(event.client_id, event.task_id):
            return False
        return not isinstance(event, events.UpdateArrived) or not self.sound

    def perform(self, action: actions.Action) -> None:
        match action:
            case actions.SendTask(client_id=client, task_id=task_id, version=version, number=number):
                assert (client, task_id) not in self.given
                assert number == sum(owner == client for owner, _ in self.given)
                assert task_id > self.newest.get(client, 0)
                rounds = self.coordinator.settings.stale_rounds.get(client, 0)
                current = self.coordinator.version
                assert version == (current - rounds if current >= rounds else current)
                assert version not in self.forgotten
                assert self.unavailable.get(client) != current, "it has declined in this round"
                self.given[client, task_id] = version
                self.newest[client] = task_id
            case actions.Acknowledge():
                self.check_verdict(action)
            case actions.DiscardUpdate(handle=handle):
                assert handle not in self.free_handles
                self.free_handles.add(handle)
            case actions.ApplyRound(version=version, contributions=contributions):
                assert not self.making
                self.making = True
                # An empty version is made only when no client tried, or none is active to try again.
                assert contributions or not (self.has_failed and self.coordinator.membership.active)
                assert [
                    (made.client_id, made.task_id, made.handle, made.base_version) for made in contributions
                ] == self.taken(len(contributions))
                assert all(made.staleness == version - made.base_version for made in contributions)
                assert self.forgotten.isdisjoint(made.base_version for made in contributions)
            case actions.ForgetVersion(version=version):
                assert version not in self.forgotten
                assert version != self.coordinator.version
                self.forgotten.add(version)
            case actions.SetTimer(timer=timer, due_s=due_s):
                assert math.isfinite(due_s)
                self.timers[timer] = due_s
            case actions.CancelTimer(timer=timer):
                del self.timers[timer]
            case actions.Finish():
                self.finished = True

    @property
    def is_cycle_over(self) -> bool:
        """Whether every waiting client has had a turn, and no busy client can still have one."""
        working = {c.client_id for c in self.coordinator.membership.clients if c.tasks.open_id is not None}
        return {client for client, *_ in self.waiting} | working <= self.had_turn

    def taken(self, count: int) -> list[tuple[int, int, int, int]]:
        """The expected members of the next round: the first to arrive, or the first whose clients have a turn."""
        may = [update for update in self.waiting if update[0] not in self.had_turn]
        if self.waiting and not may:
            assert self.is_cycle_over
            self.had_turn.clear()
            may = self.waiting
        taken = may[:count]
        self.waiting = [update for update in self.waiting if update not in taken]
        if self.coordinator.settings.once_a_cycle:
            assert self.had_turn.isdisjoint(client for client, *_ in taken)
            self.had_turn.update(client for client, *_ in taken)
            if len(self.had_turn) == self.clients:
                self.had_turn.clear()
        return taken

    def check_verdict(self, ack: actions.Acknowledge) -> None:
        """An update is accepted only once, only for its own task and version, and a repeat gets the
        same."""
        task = (ack.client_id, ack.task_id)
        assert (ack.reason is None) == (ack.first_outcome is actions.Outcome.ACCEPTED)
        if ack.outcome is actions.Outcome.ACCEPTED:
            assert task in self.given
            assert task not in self.first_verdicts
            assert self.sound
            self.consecutive_failures = 0
            self.arrived.append(self.offered)
            self.waiting.append(self.offered)
        if ack.outcome is actions.Outcome.DUPLICATE:
            assert self.first_verdicts[task] == (ack.first_outcome, ack.reason)
        elif task in self.given:
            self.first_verdicts.setdefault(task, (ack.first_outcome, ack.reason))


@pytest.mark.parametrize("name", TRIGGERS)
def test_invariants_hold_in_any_order_of_events(name: str) -> None:
    class OfOneTrigger(Shell):
        trigger = name

    run_state_machine_as_test(
        OfOneTrigger, settings=hypothesis_settings(max_examples=100, stateful_step_count=60, deadline=None)
    )
