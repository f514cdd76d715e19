"""Between the coordinator and everyone else: clients by messages, and the thread that computes by commands.

Messages become events, actions become messages and commands, in the order that the coordinator gave. No socket, thread
or clock is in here: they are handed in, so that a network and a clock that are played can drive the very same thing.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unstale import translate
from unstale.coordinator import actions, events, hopeless
from unstale.coordinator.machine import LEASE, Coordinator
from unstale.errors import UserError
from unstale.learner.updates import StagedUpdate, Staging
from unstale.learner.versions import Version
from unstale.metrics import observe
from unstale.metrics.fairness import OwnEvaluations
from unstale.metrics.observe import Observation
from unstale.metrics.progress import Outcome, Progress, Tally
from unstale.server.commands import (
    Applied,
    ApplyCommand,
    Command,
    Crashed,
    EvaluateCommand,
    Evaluated,
    ForgetCommand,
    Result,
)
from unstale.server.ingest import Ingest
from unstale.server.outgoing import Outgoing
from unstale.server.proof import Proof
from unstale.server.sessions import Sessions
from unstale.server.wire import Wire
from unstale_proto import codec
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Bye, Error, Heartbeat, Hello, Message, Stop, Update, Welcome

log = logging.getLogger("unstale.server")


@dataclass(frozen=True, slots=True)
class StopNow:
    """The operator wants the run to end."""


Letter = Result | StopNow


class Exchange:
    """Whoever drives it calls `take_in` for each message and `open` for each letter, and `fire_timers` after them and
    at `due_s`, until it is `over`: the coordinator has finished and the clients know it. Then `outcome` is set.

    wire: sends. clock: seconds, never going back. compute: takes commands; each ApplyCommand and EvaluateCommand is
    answered by a letter, in order. record: takes what is observed. welcome: for any client; id and version are filled
    in. learning_rate: eta_l of its tasks, and sent and frames: of version 0. dimension: d. evaluate_clients_every:
    rounds between evaluations by the clients. linger_s: how long clients have to say goodbye. on_progress: told of
    every evaluation. observe: told of every event and what came of it.
    """

    def __init__(
        self,
        wire: Wire,
        clock: Callable[[], float],
        *,
        coordinator: Coordinator,
        staging: Staging,
        compute: Callable[[Command], None],
        record: Callable[[Iterable[Observation]], None],
        welcome: Welcome,
        learning_rate: float,
        rounds: int,
        frames: Sequence[memoryview],
        sent: Version,
        dimension: int,
        evaluate_clients_every: int | None,
        linger_s: float,
        on_progress: Callable[[Progress], None],
        observe: actions.Observer | None = None,
    ) -> None:
        self._clock = clock
        self._observe = observe
        self._coordinator = coordinator
        self._staging = staging
        self._compute = compute
        self._record = record
        self._welcome = welcome
        self._linger_s = linger_s
        self._on_progress = on_progress
        self._sessions = Sessions(welcome.clients)
        self._proof = Proof()
        self._own_evaluations = OwnEvaluations(evaluate_clients_every)
        self._outgoing = Outgoing(
            wire,
            self._sessions,
            frames=frames,
            run_id=welcome.run_id,
            signature=welcome.signature,
            learning_rate=learning_rate,
            wanted=self._own_evaluations.wanted,
            past_versions=max(coordinator.settings.stale_rounds.values(), default=0),
        )
        self._ingest = Ingest(
            staging,
            signature=welcome.signature,
            payload_bytes=self._outgoing.payload_bytes,
            dimension=dimension,
        )
        self._timers: dict[str, float] = {}
        self._arriving: _Arriving
        self._commands_open = 0
        self._clients_at: dict[int, dict[str, int]] = {}
        self._tally = Tally(rounds)
        self._sent = sent
        self._wait_s = 0.0
        self._finish: actions.Finish | None = None
        self._finished_s = 0.0
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

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do."""
        return self.outcome is not None

    @property
    def due_s(self) -> float | None:
        """When `fire_timers` has something to do next, if nothing happens before; None is never."""
        due_s = min(self._timers.values(), default=None)
        if self._finish is not None and not self._commands_open:
            leave_s = self._finished_s + self._linger_s
            due_s = leave_s if due_s is None else min(due_s, leave_s)
        return due_s

    def payload_bytes_max(self, route: bytes) -> int:
        """A connection that speaks for no client has nothing to send but a hello."""
        return 0 if self._sessions.client_of(route) is None else self._outgoing.payload_bytes

    def fire_timers(self, *, more_waits: bool = False) -> None:
        """Do what is due. more_waits: messages have come that are not taken in yet."""
        at_s = self._clock()
        for timer in [name for name, due_s in self._timers.items() if due_s <= at_s]:
            if timer == LEASE and more_waits and at_s < self._timers[timer] + self._welcome.lease_s:
                continue  # after a pause of ours, signs of life may be among what waits
            if self._timers.get(timer, at_s + 1) <= at_s:
                del self._timers[timer]
                self._handle(events.TimerFired(timer=timer, at_s=at_s))
        if self._finish is not None:
            self._maybe_leave(self._finish)

    # --- what the compute thread and the operator say ---

    def open(self, letter: Letter) -> None:
        """Take in a letter. Raises what the compute thread died of."""
        if isinstance(letter, Applied):
            self._commands_open -= 1
            self._applied(letter)
        elif isinstance(letter, Evaluated):
            self._commands_open -= 1
            self._evaluated(letter)
        elif isinstance(letter, StopNow):
            self._handle(events.StopRequested(at_s=self._clock()))
        else:
            assert isinstance(letter, Crashed)
            raise letter.error

    def _applied(self, applied: Applied) -> None:
        result = applied.result
        self._sent = result.sent
        self._outgoing.publish(result.version, applied.frames, result.learning_rate)
        self._tally.applied(result.staleness, overflowed=result.overflowed)
        if result.overflowed:
            log.warning("version %d: its step left the range of float32 and was not taken", result.version)
        self._record(
            observe.round_applied(
                result.version,
                result.staleness,
                result.weights_K,
                wait_s=self._wait_s,
                aggregate_s=applied.aggregate_s,
                device_memory_bytes=applied.device_memory_bytes,
            )
        )
        self._handle(events.RoundApplied(version=result.version, at_s=self._clock()))

    def _evaluated(self, evaluated: Evaluated) -> None:
        evaluation = evaluated.evaluation
        self._record(
            observe.evaluated(
                evaluation.accuracy,
                evaluation.loss,
                evaluation.class_accuracy,
                evaluate_s=evaluated.evaluate_s,
            )
        )
        clients = self._clients_at.pop(evaluated.version)
        self._on_progress(
            self._tally.evaluated(
                evaluated.version, evaluation.accuracy, evaluation.loss, clients, self._clock()
            )
        )

    # --- what clients send us ---

    def take_in(self, route: bytes, header: bytes, frames: Sequence[memoryview] = ()) -> None:
        """A message came in over a connection. frames: its payload, not needed after the call."""
        try:
            message = codec.decode(header)
            speaker = self._sessions.client_of(route)
            if speaker is not None:
                self._outgoing.heard_of(speaker)
            if isinstance(message, Hello):
                self._admit(route, message)
            elif isinstance(message, Error):
                self._take_error(route, message)
            else:
                self._attend(route, message, frames)
            self._pay_what_is_owed(route)
        except RemoteContractError as error:
            self._record([observe.refused(error.reason)])
            self._outgoing.send(route, Error(reason=error.reason, message=str(error)))

    def _pay_what_is_owed(self, route: bytes) -> None:
        client_id = self._sessions.client_of(route)
        owed = None if client_id is None else self._outgoing.owed_to(client_id)
        if owed is not None and self._coordinator.awaits(owed.client_id, owed.task_id):
            self._send_task(owed)

    def _take_error(self, route: bytes, error: Error) -> None:
        """An error is never answered. One with a task gives that task back; one without is for people."""
        client_id = self._sessions.client_of(route)
        if client_id is None:
            self._record([observe.refused(Reason.HELLO_FIRST)])
            return
        level = logging.DEBUG if error.reason is Reason.UNAVAILABLE else logging.WARNING
        log.log(level, "client %d: %r (%s)", client_id, error.message, error.reason)
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
        if self._sessions.is_superseded(hello.client_id, hello.session):
            self._outgoing.send(route, Stop(reason="superseded", version=self._coordinator.version))
            return
        about_it = {"client_id": hello.client_id, "version": self._coordinator.version}
        if not self._outgoing.send(route, self._welcome.model_copy(update=about_it)):
            return  # the last word of a process that is gone; it takes nothing over
        same_connection = self._sessions.is_said_again(hello.client_id, hello.session, route)
        superseded = self._sessions.admit(hello.client_id, hello.session, route)
        if not same_connection:
            self._proof.forget(hello.client_id)
        if superseded is not None:
            self._outgoing.send(superseded, Stop(reason="superseded", version=self._coordinator.version))
        self._outgoing.heard_of(hello.client_id)
        self._handle(translate.to_client_joined(hello, self._clock(), same_connection=same_connection))
        if not same_connection:
            self._proof.holds(hello, self._coordinator.awaits)

    def _attend(self, route: bytes, message: Message, frames: Sequence[memoryview]) -> None:
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
        elif isinstance(message, Heartbeat):
            self._take_heartbeat(route, client_id, message)
        else:
            self._handle_message(message, client_id)
        if self._finish is not None:  # it was told to stop, and may not have heard it
            self._outgoing.send(route, translate.to_stop(self._finish))

    def _take_heartbeat(self, route: bytes, client_id: int, beat: Heartbeat) -> None:
        self._outgoing.send(route, Heartbeat(number=beat.number, version=self._coordinator.version))
        lost = self._proof.heard(client_id, beat, self._coordinator.awaits)
        self._handle_message(beat, client_id)
        if lost is not None:
            log.debug("task %d never reached client %d", lost, client_id)
            self._handle(events.TaskLost(client_id=client_id, task_id=lost, at_s=self._clock()))

    def _handle_message(self, message: Message, client_id: int) -> None:
        event = translate.to_event(message, client_id, self._clock())
        if event is None:
            raise RemoteContractError(
                Reason.UNEXPECTED_TYPE, f"a server takes no {message.type} of this kind"
            )
        self._handle(event)

    def _take_update(self, client_id: int, update: Update, frames: Sequence[memoryview]) -> None:
        handle, defect = self._ingest.stage(update, frames)
        self._arriving = _Arriving(
            handle, update, translate.to_staged(update, client_id), sum(map(len, frames))
        )
        self._handle(translate.to_update_arrived(update, client_id, handle, defect, self._clock()))

    # --- what the coordinator wants done ---

    def _handle(self, event: events.Event) -> None:
        following = self._coordinator.handle(event)
        if self._observe is not None:
            self._observe(event, following)
        for action in following:
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
        self._tally.started(self._clock())
        if self._outgoing.give(action):
            self._proof.sent(action.client_id, action.task_id)
            self._record([observe.task_sent(self._outgoing.payload_bytes)])

    def _acknowledge(self, action: actions.Acknowledge) -> None:
        if action.outcome is actions.Outcome.ACCEPTED:
            self._staging.keep(self._arriving.handle, self._arriving.staged)
            self._tally.accepted()
            self._note_own_evaluation(action.client_id)
        self._record(observe.verdict(action.outcome, action.reason, self._arriving.payload_bytes))
        self._outgoing.tell(action.client_id, translate.to_ack(action))

    def _note_own_evaluation(self, client_id: int) -> None:
        update = self._arriving.update
        if update.evaluation is None:
            return
        self._own_evaluations.answered(client_id, update.base_version, update.evaluation.accuracy)
        fairness = self._own_evaluations.fairness
        if fairness is not None:
            self._record(observe.own_evaluations(fairness))

    def _discard_update(self, action: actions.DiscardUpdate) -> None:
        self._staging.discard(action.handle)

    def _apply_round(self, action: actions.ApplyRound) -> None:
        assert self._coordinator.round_started_s is not None
        self._wait_s = self._clock() - self._coordinator.round_started_s
        taken = self._staging.take([contribution.handle for contribution in action.contributions])
        self._submit(
            ApplyCommand(round=taken, updates=translate.to_round(action.contributions, taken.updates))
        )

    def _forget_version(self, action: actions.ForgetVersion) -> None:
        self._compute(ForgetCommand(version=action.version))

    def _evaluate(self, action: actions.Evaluate) -> None:
        self._clients_at[action.version] = self._coordinator.clients_by_state
        self._submit(EvaluateCommand(version=action.version))

    def _set_timer(self, action: actions.SetTimer) -> None:
        self._timers[action.timer] = action.due_s

    def _cancel_timer(self, action: actions.CancelTimer) -> None:
        self._timers.pop(action.timer, None)

    def _end(self, action: actions.Finish) -> None:
        self._finish = action
        self._finished_s = self._clock()
        stop = translate.to_stop(action)
        for route in self._sessions.routes():
            self._outgoing.send(route, stop)

    def _submit(self, command: ApplyCommand | EvaluateCommand) -> None:
        self._commands_open += 1
        self._compute(command)

    # --- the last things ---

    def _maybe_leave(self, finish: actions.Finish) -> None:
        """Over when nothing is being computed and every client has said goodbye, or has had its time to."""
        if self._commands_open or (
            self._sessions.routes() and self._clock() < self._finished_s + self._linger_s
        ):
            return
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
