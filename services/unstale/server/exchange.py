"""The exchange thread: the ROUTER socket, the coordinator and the staging matrix, and nothing slow.

Messages become events, actions become messages and commands for the compute thread, in the order that the coordinator
gave. Nothing here waits but on the sockets.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import zmq

from unstale import translate
from unstale.coordinator import actions, events, hopeless
from unstale.coordinator.machine import LEASE, Coordinator
from unstale.errors import UserError
from unstale.learner.updates import StagedUpdate, Staging
from unstale.learner.versions import Version
from unstale.metrics import observe
from unstale.metrics.fairness import OwnEvaluations
from unstale.metrics.progress import Outcome, Progress, Tally
from unstale.net import sockets
from unstale.net.clock import now_s
from unstale.net.mailbox import Mailbox
from unstale.server.compute import (
    Applied,
    ApplyCommand,
    Compute,
    Crashed,
    EvaluateCommand,
    Evaluated,
    ForgetCommand,
    Result,
)
from unstale.server.exposition import Instruments
from unstale.server.ingest import Ingest
from unstale.server.outgoing import Outgoing
from unstale.server.sessions import Sessions
from unstale_proto import codec
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Bye, Error, Heartbeat, Hello, Message, Stop, Update, Welcome

log = logging.getLogger("unstale.server")

TURN_MESSAGES = 64  # messages taken in before timers and results get their turn


@dataclass(frozen=True, slots=True)
class StopNow:
    """The operator wants the run to end."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered by setting `answered`: the thread turns."""

    answered: threading.Event = field(default_factory=threading.Event)


Letter = Result | StopNow | Ping


class Exchange:
    """Runs until the coordinator finishes and the clients know it; then `outcome` is set.

    welcome: for any client; id and version are filled in. learning_rate: eta_l of its tasks, and sent and
    frames: of version 0. dimension: d. evaluate_clients_every: rounds between evaluations by the clients.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        *,
        coordinator: Coordinator,
        staging: Staging,
        mailbox: Mailbox[Letter],
        compute: Compute,
        instruments: Instruments,
        welcome: Welcome,
        learning_rate: float,
        rounds: int,
        frames: Sequence[memoryview],
        sent: Version,
        dimension: int,
        evaluate_clients_every: int | None,
        linger_s: float,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._socket = socket
        self._coordinator = coordinator
        self._staging = staging
        self._mailbox = mailbox
        self._compute = compute
        self._instruments = instruments
        self._welcome = welcome
        self._linger_s = linger_s
        self._on_progress = on_progress
        self._sessions = Sessions(welcome.clients)
        self._own_evaluations = OwnEvaluations(evaluate_clients_every)
        self._outgoing = Outgoing(
            socket,
            self._sessions,
            frames=frames,
            signature=welcome.signature,
            learning_rate=learning_rate,
            wanted=self._own_evaluations.wanted,
        )
        self._ingest = Ingest(
            staging,
            signature=welcome.signature,
            payload_bytes=self._outgoing.payload_bytes,
            dimension=dimension,
        )
        self._timers: dict[str, float] = {}
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(mailbox.fileno(), zmq.POLLIN)
        self._arriving: _Arriving
        self._commands_open = 0
        self._clients_at: dict[int, dict[str, int]] = {}
        self._tally = Tally(rounds)
        self._sent = sent
        self._wait_s = 0.0
        self._finish: actions.Finish | None = None
        self._finished_s = 0.0
        self._more_waits = False
        self._over = False
        self.outcome: Outcome | None = None
        self._performers: dict[type, Callable[..., None]] = {
            actions.SendTask: self._send_task,
            actions.Acknowledge: self._acknowledge,
            actions.DiscardUpdate: self._discard_update,
            actions.ApplyRound: self._apply_round,
            actions.ForgetVersion: self._forget_version,
            actions.SetTimer: self._set_timer,
            actions.CancelTimer: self._cancel_timer,
            actions.Evaluate: self._evaluate,
            actions.Finish: self._end,
        }

    @property
    def is_finishing(self) -> bool:
        """Whether the run has ended and only goodbyes are left. Any thread."""
        return self._finish is not None

    def run(self) -> None:
        """Turn until the run is over. Raises what the compute thread died of."""
        while not self._over:
            self._turn()

    # --- one turn ---

    def _turn(self) -> None:
        ready = dict(self._poller.poll(self._patience_ms()))
        if self._mailbox.fileno() in ready:
            for letter in self._mailbox.drain():
                self._open(letter)
        if self._socket in ready:
            self._take_in_some()
        self._fire_timers()
        if self._finish is not None:
            self._maybe_leave(self._finish)

    def _take_in_some(self) -> None:
        self._more_waits = True
        for _ in range(TURN_MESSAGES):
            received = sockets.receive(self._socket, routed=True, payload_bytes_max=self._payload_bytes_max)
            if received is None:
                self._more_waits = False
                break
            self._take_in(*received)

    def _payload_bytes_max(self, route: bytes) -> int:
        """A connection that speaks for no client has nothing to send but a hello."""
        return 0 if self._sessions.client_of(route) is None else self._outgoing.payload_bytes

    def _patience_ms(self) -> int | None:
        """How long to wait for something to happen: until the next timer; None is for ever."""
        due_s = min(self._timers.values(), default=None)
        if self._finish is not None:
            leave_s = self._finished_s + self._linger_s
            due_s = leave_s if due_s is None else min(due_s, leave_s)
        return None if due_s is None else max(0, int((due_s - now_s()) * 1000) + 1)

    def _fire_timers(self) -> None:
        at_s = now_s()
        for timer in [name for name, due_s in self._timers.items() if due_s <= at_s]:
            if timer == LEASE and self._more_waits and at_s < self._timers[timer] + self._welcome.lease_s:
                continue  # after a pause of ours, signs of life may be among what waits
            if self._timers.get(timer, at_s + 1) <= at_s:
                del self._timers[timer]
                self._handle(events.TimerFired(timer=timer, at_s=at_s))

    def _open(self, letter: Letter) -> None:
        if isinstance(letter, Applied):
            self._commands_open -= 1
            self._applied(letter)
        elif isinstance(letter, Evaluated):
            self._commands_open -= 1
            self._evaluated(letter)
        elif isinstance(letter, Ping):
            letter.answered.set()
        elif isinstance(letter, StopNow):
            self._handle(events.StopRequested(at_s=now_s()))
        else:
            assert isinstance(letter, Crashed)
            raise letter.error

    # --- what clients send us ---

    def _take_in(self, route: bytes, header: bytes, frames: list[zmq.Frame]) -> None:
        try:
            message = codec.decode(header)
            if isinstance(message, Hello):
                self._admit(route, message)
            elif isinstance(message, Error):
                self._take_error(route, message)
            else:
                self._attend(route, message, frames)
            self._pay_what_is_owed(route)
        except RemoteContractError as error:
            self._instruments.record(observe.refused(error.reason))
            self._outgoing.send(route, Error(reason=error.reason, message=str(error)))

    def _pay_what_is_owed(self, route: bytes) -> None:
        client_id = self._sessions.client_of(route)
        owed = None if client_id is None else self._outgoing.heard_of(client_id)
        if owed is not None and self._coordinator.awaits(owed.client_id, owed.task_id):
            self._send_task(owed)

    def _take_error(self, route: bytes, error: Error) -> None:
        """An error is never answered. One with a task gives that task back; one without is for people."""
        client_id = self._sessions.client_of(route)
        if client_id is None:
            self._instruments.record(observe.refused(Reason.HELLO_FIRST))
            return
        log.warning("client %d: %r (%s)", client_id, error.message, error.reason)
        if error.task_id is not None:
            self._handle_message(error, client_id)

    def _admit(self, route: bytes, hello: Hello) -> None:
        if hello.client_id >= self._welcome.clients:
            raise RemoteContractError(
                Reason.UNKNOWN_CLIENT,
                f"client id {hello.client_id} is not below {self._welcome.clients}, the number of clients in this run",
            )
        if self._finish is not None:
            self._outgoing.send(route, translate.to_stop(self._finish))
            return
        same_connection = self._sessions.is_said_again(hello.client_id, hello.session, route)
        superseded = self._sessions.admit(hello.client_id, hello.session, route)
        if superseded is not None:
            self._outgoing.send(superseded, Stop(reason="superseded", version=self._coordinator.version))
        self._outgoing.send(
            route,
            self._welcome.model_copy(
                update={"client_id": hello.client_id, "version": self._coordinator.version}
            ),
        )
        self._handle(translate.to_client_joined(hello, now_s(), same_connection=same_connection))

    def _attend(self, route: bytes, message: Message, frames: list[zmq.Frame]) -> None:
        client_id = self._sessions.client_of(route)
        if isinstance(message, Bye):
            if client_id is not None:
                if self._finish is None:
                    log.info("client %d leaves: %r", client_id, message.reason)
                self._sessions.forget(client_id)
                self._handle_message(message, client_id)
            return
        if client_id is None or not self._coordinator.is_active(client_id):
            raise RemoteContractError(
                Reason.HELLO_FIRST, f"a {message.type} came before a hello on this connection"
            )
        if isinstance(message, Update):
            self._take_update(client_id, message, frames)
            return
        if isinstance(message, Heartbeat):
            self._outgoing.send(route, Heartbeat(number=message.number, version=self._coordinator.version))
        self._handle_message(message, client_id)

    def _handle_message(self, message: Message, client_id: int) -> None:
        event = translate.to_event(message, client_id, now_s())
        if event is None:
            raise RemoteContractError(
                Reason.UNEXPECTED_TYPE, f"a server takes no {message.type} of this kind"
            )
        self._handle(event)

    def _take_update(self, client_id: int, update: Update, frames: list[zmq.Frame]) -> None:
        handle, defect = self._ingest.stage(update, frames)
        self._arriving = _Arriving(
            handle, update, translate.to_staged(update, client_id), sum(map(len, frames))
        )
        self._handle(translate.to_update_arrived(update, client_id, handle, defect, now_s()))

    # --- what the compute thread says ---

    def _applied(self, applied: Applied) -> None:
        result = applied.result
        self._sent = result.sent
        self._outgoing.publish(result.version, applied.frames, result.learning_rate)
        self._tally.applied(result.staleness, overflowed=result.overflowed)
        if result.overflowed:
            log.warning("version %d: its step left the range of float32 and was not taken", result.version)
        self._instruments.record_all(
            observe.round_applied(
                result.version,
                result.staleness,
                result.weights_K,
                wait_s=self._wait_s,
                aggregate_s=applied.aggregate_s,
                device_memory_bytes=applied.device_memory_bytes,
            )
        )
        self._handle(events.RoundApplied(version=result.version, at_s=now_s()))

    def _evaluated(self, evaluated: Evaluated) -> None:
        evaluation = evaluated.evaluation
        self._instruments.record_all(
            observe.evaluated(
                evaluation.accuracy,
                evaluation.loss,
                evaluation.class_accuracy,
                evaluate_s=evaluated.evaluate_s,
            )
        )
        clients = self._clients_at.pop(evaluated.version)
        self._on_progress(
            self._tally.evaluated(evaluated.version, evaluation.accuracy, evaluation.loss, clients, now_s())
        )

    # --- what the coordinator wants done ---

    def _handle(self, event: events.Event) -> None:
        for action in self._coordinator.handle(event):
            self._performers[type(action)](action)
        if self._coordinator.fruitless:
            self._give_up_if_hopeless()

    def _give_up_if_hopeless(self) -> None:
        """Raise UserError, having told the clients, when nobody makes updates that count."""
        why = hopeless.sentence(self._coordinator)
        if why is not None:
            for route in self._sessions.routes():
                self._outgoing.send(route, Stop(reason="shutdown", version=self._coordinator.version))
            raise UserError(why)

    def _send_task(self, action: actions.SendTask) -> None:
        self._tally.started(now_s())
        if self._outgoing.give(action):
            self._instruments.record(observe.task_sent(self._outgoing.payload_bytes))

    def _acknowledge(self, action: actions.Acknowledge) -> None:
        if action.outcome is actions.Outcome.ACCEPTED:
            self._staging.keep(self._arriving.handle, self._arriving.staged)
            self._tally.accepted()
            self._note_own_evaluation(action.client_id)
        self._instruments.record_all(
            observe.verdict(action.outcome, action.reason, self._arriving.payload_bytes)
        )
        self._outgoing.tell(action.client_id, translate.to_ack(action))

    def _note_own_evaluation(self, client_id: int) -> None:
        update = self._arriving.update
        if update.evaluation is None:
            return
        self._own_evaluations.answered(client_id, update.base_version, update.evaluation.accuracy)
        fairness = self._own_evaluations.fairness
        if fairness is not None:
            self._instruments.record_all(observe.own_evaluations(fairness))

    def _discard_update(self, action: actions.DiscardUpdate) -> None:
        self._staging.discard(action.handle)

    def _apply_round(self, action: actions.ApplyRound) -> None:
        assert self._coordinator.round_started_s is not None
        self._wait_s = now_s() - self._coordinator.round_started_s
        taken = self._staging.take([contribution.handle for contribution in action.contributions])
        self._submit(
            ApplyCommand(round=taken, updates=translate.to_round(action.contributions, taken.updates))
        )

    def _forget_version(self, action: actions.ForgetVersion) -> None:
        self._compute.submit(ForgetCommand(version=action.version))

    def _evaluate(self, action: actions.Evaluate) -> None:
        self._clients_at[action.version] = self._coordinator.clients_by_state
        self._submit(EvaluateCommand(version=action.version))

    def _set_timer(self, action: actions.SetTimer) -> None:
        self._timers[action.timer] = action.due_s

    def _cancel_timer(self, action: actions.CancelTimer) -> None:
        self._timers.pop(action.timer, None)

    def _end(self, action: actions.Finish) -> None:
        self._finish = action
        self._finished_s = now_s()
        stop = translate.to_stop(action)
        for route in self._sessions.routes():
            self._outgoing.send(route, stop)

    def _submit(self, command: ApplyCommand | EvaluateCommand) -> None:
        self._commands_open += 1
        self._compute.submit(command)

    # --- the last things ---

    def _maybe_leave(self, finish: actions.Finish) -> None:
        """Over when nothing is being computed and every client has said goodbye, or has had its time to."""
        if self._commands_open or (self._sessions.routes() and now_s() < self._finished_s + self._linger_s):
            return
        self._over = True
        self.outcome = self._tally.ended(
            finish.reason,
            self._coordinator.version,
            self._coordinator.updates_by_outcome,
            self._sent.digest,
            self._finished_s,
            self._own_evaluations.fairness,
        )


class _Arriving(NamedTuple):
    """The update that the coordinator is being asked about."""

    handle: int
    update: Update
    staged: StagedUpdate
    payload_bytes: int
