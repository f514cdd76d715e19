"""Executes the actions of the coordinator, for the server and the simulator. Messages wait until events are durable."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Protocol, TypeVar

from unstale import translate
from unstale.coordinator import actions, divergence, events
from unstale.journal.recorder import IncomingUpdate, Recorder
from unstale.learner.updates import Staging
from unstale.server import commands
from unstale.server.admission import Admission
from unstale.server.client_limits import ClientLimits
from unstale.server.delivery import DeliveryTracker
from unstale.server.stats import RunStats
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


@dataclass(kw_only=True, eq=False)
class ActionExecutor:
    """Passes events to the coordinator and executes its actions. Protocol thread only."""

    clock: Callable[[], float]
    recorder: Recorder
    outbox: Outbox
    compute: Callable[[commands.Command], object]
    """Takes commands; results come back in order, through the owner of the executor."""
    stats: RunStats
    staging: Staging
    admission: Admission
    client_limits: ClientLimits
    observe: actions.Observer | None = None  # receives every event and its actions
    task_timeout_s: InitVar[float | None] = None
    prefetches: bool = False  # stale updates are worked on before their round closes
    delivery: DeliveryTracker = field(init=False, default_factory=DeliveryTracker)
    """Tasks that were sent, and what is known of their arrival."""
    after_commit: list[tuple[Callable[[Any], object], Any]] = field(init=False, default_factory=list)
    """Calls with one argument each, made in this order once all events are durable."""
    commands_open: int = field(init=False, default=0)  # commands that are not answered yet
    finish: actions.Finish | None = field(init=False, default=None)  # end of the run
    client_error: str | None = field(init=False, default=None)  # about the last task without an update
    finished_s: float = field(init=False, default=0.0)
    _wait_s: float = field(init=False, default=0.0)  # time for which the last round was open

    def __post_init__(self, task_timeout_s: float | None) -> None:
        self._coordinator = self.recorder.coordinator
        self.timers = Timers(self._coordinator, task_timeout_s)
        self._handlers: Mapping[type, Callable[..., object]] = {
            actions.SendTask: self._schedule_task,
            actions.DiscardUpdate: lambda action: self.staging.discard(action.handle),
            actions.ApplyRound: self._apply_round,
            actions.ForgetVersion: lambda action: self.compute(commands.ForgetCommand(version=action.version)),
            actions.SetTimer: lambda action: self.timers.set(action.timer, action.due_s),
            actions.CancelTimer: lambda action: self.timers.cancel(action.timer),
            actions.Evaluate: self._evaluate,
            actions.Finish: self._finish,
        }

    # --- events ---

    def handle(self, event: events.Event) -> None:
        """Pass any event but an update and a round to the coordinator, and execute its actions."""
        self.execute(event, self.recorder.handle(event))

    def on_update(self, incoming: IncomingUpdate) -> None:
        """Pass an update to the coordinator, and execute its actions, of which the first is the verdict."""
        self.execute(incoming.event, self.recorder.update(incoming), incoming)

    def on_hello(self, hello: Hello, at_s: float, *, same_connection: bool) -> None:
        """Pass a hello to the coordinator, with its consequences for the last task of the client."""
        awaits = self._coordinator.awaits
        if not same_connection:
            expired = self.delivery.expired_by_hello(hello, awaits, at_s)
            if expired is not None:
                self.handle(expired)
            self.delivery.forget(hello.client_id)
        self.handle(translate.to_client_joined(hello, at_s, same_connection=same_connection))
        for task_id in () if same_connection else hello.holding:
            if awaits(hello.client_id, task_id):  # it arrived; its update may be lost
                self.delivery.sent(hello.client_id, task_id)

    def on_heartbeat_answered(self, client_id: int, heartbeat: Heartbeat) -> bool:
        """Whether the heartbeat proves that the client's open task was lost; the coordinator is informed."""
        task_id = self.delivery.lost(client_id, heartbeat)
        self.delivery.on_heartbeat_answered(client_id, heartbeat.number)
        if task_id is None or not self._coordinator.awaits(client_id, task_id):
            return False
        self.handle(self.delivery.event_of_loss(client_id, task_id, self.clock()))
        return True

    def execute(
        self, event: events.Event, following: Sequence[actions.Action], incoming: IncomingUpdate | None = None
    ) -> None:
        """Execute the actions that follow from an event. incoming: the update that the event is about."""
        if self.observe is not None:
            self.observe(event, following)
        for action in following:
            if isinstance(action, actions.Acknowledge):
                assert incoming is not None
                self._acknowledge(action, incoming)
            else:
                self._handlers[type(action)](action)
        if self._coordinator.consecutive_failures:
            self._give_up_if_diverged()
        self._end_if_target_is_reached()

    # --- results ---

    def submit(self, command: commands.ApplyCommand | commands.EvaluateCommand | commands.CheckpointCommand) -> None:
        """Submit a command that is answered by a result."""
        self.commands_open += 1
        self.compute(command)

    def record_round(self, applied: commands.Applied) -> tuple[events.RoundApplied, Sequence[actions.Action]]:
        """Publish a new version. Its event and actions, for `execute`; a checkpoint may be submitted before that."""
        self.commit_and_send()  # tasks that carry the version before
        self.commands_open -= 1
        result = applied.result
        self.admission.published(result)
        self.outbox.publish(result.version, applied.frames, result.learning_rate, applied.encoded)
        self.stats.applied(applied, self._wait_s)
        event = events.RoundApplied(version=result.version, at_s=self.clock())
        following = self.recorder.round_applied(
            event,
            result,
            digest=applied.digest,
            wait_s=self._wait_s,
            compensate_s=applied.compensate_s,
            aggregate_s=applied.aggregate_s,
        )
        return event, following

    def on_evaluated(self, evaluated: commands.Evaluated) -> None:
        """Record the evaluation of a version."""
        self.commands_open -= 1
        at_s = self.clock()
        self.recorder.evaluated(evaluated.version, at_s, evaluated.evaluation, evaluate_s=evaluated.evaluate_s)
        self.stats.evaluated(evaluated, at_s)
        self._end_if_target_is_reached()

    # --- messages ---

    def send_after_commit(self, send: Callable[[_Argument], object], argument: _Argument) -> None:
        """Hold a call until the events so far are durable."""
        self.after_commit.append((send, argument))

    def commit_and_send(self) -> None:
        """Make all events durable, then send what follows from them. Raises UserError before anything is sent."""
        self.recorder.commit(durable=self.finish is not None)
        self.stats.flush()  # every message that is sent is counted already
        while self.after_commit:  # the answer to a heartbeat may prove that a task was lost, and so on
            self.send_held()
            self.recorder.commit()
        self.stats.flush()

    def send_held(self) -> None:
        """Make the calls that are held now. More may be held then."""
        calls, self.after_commit = self.after_commit, []
        for send, argument in calls:
            send(argument)

    def send_task(self, action: actions.SendTask) -> None:
        """Send a task that is still open."""
        if self._coordinator.awaits(action.client_id, action.task_id) and self.outbox.send_task(action):
            self.delivery.sent(action.client_id, action.task_id)
            self.stats.model_sent(self.outbox.bytes_with_task(action.client_id))

    def announce_failure(self, why: str) -> None:
        """Tell every client that the run is given up, by a stop for `shutdown`, which older clients know too."""
        version = self._coordinator.version
        self.outbox.send_to_all(Stop(reason="shutdown", version=version, failed=True, message=why[:TEXT_MAX]))

    # --- actions ---

    def _end_if_target_is_reached(self) -> None:
        if self.stats.is_target_reached and self.finish is None:
            self.handle(events.TargetReached(at_s=self.clock()))

    def _give_up_if_diverged(self) -> None:
        why = divergence.reason(self._coordinator, self.admission.bounds.cause, self.client_error)
        if why is not None:
            self.commit_and_send()
            message = self.recorder.give_up(why)
            self.announce_failure(why)
            raise divergence.DivergedError(message)

    def _schedule_task(self, action: actions.SendTask) -> None:
        at_s = self._coordinator.now_s
        self.stats.tally.started(at_s)
        self.timers.on_task(action.client_id, action.task_id, at_s)
        self.after_commit.append((self.send_task, action))

    def _acknowledge(self, action: actions.Acknowledge, incoming: IncomingUpdate) -> None:
        event, self.client_error = incoming.event, None
        if action.outcome is actions.Outcome.ACCEPTED:
            self.staging.keep(event.handle, incoming.staged)
            self.delivery.accepted(action.client_id)
            staleness = self._coordinator.version - event.base_version
            if self.prefetches and staleness > 0:
                update = incoming.staged.in_round(staleness)
                self.compute(commands.PrecomputeCommand(row_D=self.staging.newest_D, update=update))
        self.stats.judged(action, incoming, self.admission.bounds)
        self.admission.judged(action, event.base_version, incoming.norms)
        self.client_limits.on_verdict(action, event.at_s)
        warning = self.client_limits.model_health.take_warning(self.admission.bounds)
        if warning is not None:
            log.warning("%s", warning)
        self.after_commit.append((self.outbox.acknowledge, action))

    def _apply_round(self, action: actions.ApplyRound) -> None:
        assert self._coordinator.round_started_s is not None
        self._wait_s = self.clock() - self._coordinator.round_started_s
        taken = self.staging.take([contribution.handle for contribution in action.contributions])
        updates = translate.to_round(action.contributions, taken.updates)
        self.stats.round_closed(updates)
        self.submit(commands.ApplyCommand(round=taken, updates=updates))

    def _evaluate(self, action: actions.Evaluate) -> None:
        self.stats.on_evaluation_started(action.version, self._coordinator.clients_by_state)
        self.submit(commands.EvaluateCommand(version=action.version))

    def _finish(self, action: actions.Finish) -> None:
        self.finish = action
        self.finished_s = self.clock()
        self.send_after_commit(self._send_stop_to_all, action)

    def _send_stop_to_all(self, finish: actions.Finish) -> None:
        self.outbox.send_to_all(translate.to_stop(finish))
