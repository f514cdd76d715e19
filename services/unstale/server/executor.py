"""Executes the actions of the coordinator. The socket server and the simulator share this code.

Commands go to the compute side at once. Messages to clients are held until the events before them are durable.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from unstale import translate
from unstale.coordinator import actions, divergence, events
from unstale.coordinator.machine import Coordinator
from unstale.journal.recorder import IncomingUpdate, Recorder
from unstale.learner.updates import StagedUpdate, Staging
from unstale.server.admission import Admission
from unstale.server.client_limits import ClientLimits
from unstale.server.commands import (
    Applied,
    ApplyCommand,
    CheckpointCommand,
    Command,
    EvaluateCommand,
    Evaluated,
    ForgetCommand,
    PrecomputeCommand,
)
from unstale.server.delivery import DeliveryTracker
from unstale.server.run_stats import RunStats
from unstale.server.timers import Timers
from unstale_proto.limits import TEXT_MAX
from unstale_proto.messages import Heartbeat, Hello, Message, Stop

log = logging.getLogger("unstale.server")

_Argument = TypeVar("_Argument")


class Outbox(Protocol):
    """Sends messages to clients: `Sender` over sockets, `VirtualOutbox` in a simulation."""

    def send_task(self, action: actions.SendTask) -> bool:
        """Send a task with its model. Whether it left on a connection that may lose it."""

    def bytes_with_task(self, client_id: int) -> int:
        """Payload bytes that go with a client's task."""

    def acknowledge(self, action: actions.Acknowledge) -> object:
        """Send the verdict on an update, if its client can be reached."""

    def publish(
        self, version: int, frames: Sequence[memoryview], learning_rate: float, encoded: Sequence[memoryview] = ()
    ) -> object:
        """From now on tasks may carry this version, and have this learning rate."""

    def send_to_all(self, message: Message) -> object:
        """Send a message to every client that can be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything outside the executor.

    Attributes:
        clock: Seconds of the run, never decreasing.
        outbox: Sends messages.
        compute: Takes commands; results come back in order, through the owner of the executor.
        stats: Counts.
        observe: Receives every event and its actions.
    """

    clock: Callable[[], float]
    outbox: Outbox
    compute: Callable[[Command], object]
    stats: RunStats
    observe: actions.Observer | None = None


class ActionExecutor:
    """Passes events to the coordinator and executes its actions. Protocol thread only.

    Attributes:
        delivery: Tasks that were sent, and what is known of their arrival.
        timers: Of the coordinator, and deadlines of open tasks.
        after_commit: Calls with one argument each, made in this order once all events are durable.
        commands_open: Commands that are not answered yet.
        finish, finished_s: End of the run, None before.
    """

    def __init__(
        self,
        ports: Ports,
        recorder: Recorder,
        *,
        staging: Staging,
        admission: Admission,
        client_limits: ClientLimits,
        task_timeout_s: float | None = None,
        prefetch: bool = False,
    ) -> None:
        """prefetch: stale updates are worked on before their round closes."""
        self._clock, self._compute, self._observe = ports.clock, ports.compute, ports.observe
        self._outbox, self._stats = ports.outbox, ports.stats
        self._recorder = recorder
        self._coordinator: Coordinator = recorder.coordinator
        self._staging = staging
        self._admission = admission
        self._client_limits = client_limits
        self._prefetch = prefetch
        self.delivery = DeliveryTracker()
        self.timers = Timers(recorder.coordinator, task_timeout_s)
        self.after_commit: list[tuple[Callable[[Any], object], Any]] = []
        self.commands_open = 0
        self.finish: actions.Finish | None = None
        self.finished_s = 0.0
        self._wait_s = 0.0  # time for which the last round was open
        self._handlers: Mapping[type, Callable[..., None]] = {
            actions.SendTask: self._schedule_task,
            actions.DiscardUpdate: self._discard_update,
            actions.ApplyRound: self._apply_round,
            actions.ForgetVersion: self._forget_version,
            actions.SetTimer: self._set_timer,
            actions.CancelTimer: self._cancel_timer,
            actions.Evaluate: self._evaluate,
            actions.Finish: self._finish,
        }

    # --- events ---

    def handle(self, event: events.Event) -> None:
        """Pass any event but an update and a round to the coordinator, and execute its actions."""
        self.execute(event, self._recorder.handle(event))

    def on_update(self, incoming: IncomingUpdate) -> None:
        """Pass an update to the coordinator, and execute its actions, of which the first is the verdict."""
        self.execute(incoming.event, self._recorder.update(incoming), incoming)

    def on_hello(self, hello: Hello, at_s: float, *, same_connection: bool) -> None:
        """Pass a hello to the coordinator, with its consequences for the last task of the client."""
        if not same_connection:
            expired = self.delivery.expired_by_hello(hello, self._coordinator.awaits, at_s)
            if expired is not None:
                self.handle(expired)
            self.delivery.forget(hello.client_id)
        self.handle(translate.to_client_joined(hello, at_s, same_connection=same_connection))
        if not same_connection:
            self.delivery.on_hello(hello, self._coordinator.awaits)

    def on_heartbeat_answered(self, client_id: int, heartbeat: Heartbeat) -> bool:
        """Whether the heartbeat proves that the client's open task was lost; the coordinator is informed."""
        task_id = self.delivery.on_heartbeat(client_id, heartbeat, self._coordinator.awaits)
        if task_id is None:
            return False
        self.handle(self.delivery.event_of_loss(client_id, task_id, self._clock()))
        return True

    def execute(
        self, event: events.Event, following: Sequence[actions.Action], incoming: IncomingUpdate | None = None
    ) -> None:
        """Execute the actions that follow from an event. incoming: the update that the event is about."""
        if self._observe is not None:
            self._observe(event, following)
        for action in following:
            if isinstance(action, actions.Acknowledge):
                assert incoming is not None
                self._acknowledge(action, incoming)
            else:
                self._handlers[type(action)](action)
        if self._coordinator.consecutive_failures:
            self._give_up_if_diverged()

    # --- results ---

    def submit(self, command: ApplyCommand | EvaluateCommand | CheckpointCommand) -> None:
        """Submit a command that is answered by a result."""
        self.commands_open += 1
        self._compute(command)

    def record_round(self, applied: Applied) -> tuple[events.RoundApplied, Sequence[actions.Action]]:
        """Publish a new version and pass it to the coordinator.

        Returns:
            The event and its actions, for `execute`. The caller may submit a checkpoint before that.
        """
        self.commit_and_send()  # tasks that carry the version before
        self.commands_open -= 1
        result = applied.result
        self._admission.published(result)
        self._outbox.publish(result.version, applied.frames, result.learning_rate, applied.encoded)
        self._stats.applied(applied, self._wait_s)
        event = events.RoundApplied(version=result.version, at_s=self._clock())
        following = self._recorder.round_applied(
            event,
            result,
            digest=applied.digest,
            wait_s=self._wait_s,
            compensate_s=applied.compensate_s,
            aggregate_s=applied.aggregate_s,
        )
        return event, following

    def on_evaluated(self, evaluated: Evaluated) -> None:
        """Record the evaluation of a version."""
        self.commands_open -= 1
        at_s = self._clock()
        self._recorder.evaluated(evaluated.version, at_s, evaluated.evaluation, evaluate_s=evaluated.evaluate_s)
        self._stats.evaluated(evaluated, at_s)

    # --- messages ---

    def send_after_commit(self, send: Callable[[_Argument], object], argument: _Argument) -> None:
        """Hold a call until the events so far are durable."""
        self.after_commit.append((send, argument))

    def commit_and_send(self) -> None:
        """Make all events durable, then send the messages that follow from them.

        Raises:
            UserError: The events cannot be stored; then no message was sent.
        """
        self._recorder.commit(durable=self.finish is not None)
        self._stats.flush()  # every message that is sent is counted already
        while self.after_commit:  # the answer to a heartbeat may prove that a task was lost, and so on
            self.send_held()
            self._recorder.commit()
        self._stats.flush()

    def send_held(self) -> None:
        """Make the calls that are held now. More may be held then."""
        calls, self.after_commit = self.after_commit, []
        for send, argument in calls:
            send(argument)

    def send_task(self, action: actions.SendTask) -> None:
        """Send a task that is still open."""
        if self._coordinator.awaits(action.client_id, action.task_id) and self._outbox.send_task(action):
            self.delivery.sent(action.client_id, action.task_id)
            self._stats.model_sent(self._outbox.bytes_with_task(action.client_id))

    def announce_failure(self, why: str) -> None:
        """Tell every client that the run is given up, by a stop for `shutdown`, which older clients know too."""
        version = self._coordinator.version
        self._outbox.send_to_all(Stop(reason="shutdown", version=version, failed=True, message=why[:TEXT_MAX]))

    # --- actions ---

    def _give_up_if_diverged(self) -> None:
        why = divergence.reason(self._coordinator, self._admission.bounds.cause)
        if why is not None:
            self.commit_and_send()
            message = self._recorder.give_up(why)
            self.announce_failure(why)
            raise divergence.DivergedError(message)

    def _schedule_task(self, action: actions.SendTask) -> None:
        at_s = self._coordinator.now_s
        self._stats.tally.started(at_s)
        self.timers.on_task(action.client_id, action.task_id, at_s)
        self.after_commit.append((self.send_task, action))

    def _acknowledge(self, action: actions.Acknowledge, incoming: IncomingUpdate) -> None:
        event = incoming.event
        if action.outcome is actions.Outcome.ACCEPTED:
            self._staging.keep(event.handle, incoming.staged)
            self.delivery.accepted(action.client_id)
            if self._prefetch:
                self._precompute(incoming.staged)
        self._stats.judged(action, incoming, self._admission.bounds)
        self._admission.judged(action, event.base_version, incoming.norms)
        self._client_limits.on_verdict(action, event.at_s)
        warning = self._client_limits.model_health.take_warning(self._admission.bounds)
        if warning is not None:
            log.warning("%s", warning)
        self.after_commit.append((self._outbox.acknowledge, action))

    def _precompute(self, staged: StagedUpdate) -> None:
        """Let work on an update that is stale already begin before its round closes."""
        staleness = self._coordinator.version - staged.base_version
        if staleness > 0:
            self._compute(PrecomputeCommand(row_D=self._staging.newest_D, update=staged.in_round(staleness)))

    def _discard_update(self, action: actions.DiscardUpdate) -> None:
        self._staging.discard(action.handle)

    def _apply_round(self, action: actions.ApplyRound) -> None:
        assert self._coordinator.round_started_s is not None
        self._wait_s = self._clock() - self._coordinator.round_started_s
        taken = self._staging.take([contribution.handle for contribution in action.contributions])
        updates = translate.to_round(action.contributions, taken.updates)
        self.submit(ApplyCommand(round=taken, updates=updates))

    def _forget_version(self, action: actions.ForgetVersion) -> None:
        self._compute(ForgetCommand(version=action.version))

    def _evaluate(self, action: actions.Evaluate) -> None:
        self._stats.on_evaluation_started(action.version, self._coordinator.clients_by_state)
        self.submit(EvaluateCommand(version=action.version))

    def _set_timer(self, action: actions.SetTimer) -> None:
        self.timers.set(action.timer, action.due_s)

    def _cancel_timer(self, action: actions.CancelTimer) -> None:
        self.timers.cancel(action.timer)

    def _finish(self, action: actions.Finish) -> None:
        self.finish = action
        self.finished_s = self._clock()
        self.send_after_commit(self._send_stop_to_all, action)

    def _send_stop_to_all(self, finish: actions.Finish) -> None:
        self._outbox.send_to_all(translate.to_stop(finish))
