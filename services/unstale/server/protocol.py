"""Between the coordinator and everyone else: clients by messages, and the thread that computes by commands.

Messages become events, actions become messages and commands, in the order that the coordinator gave. No socket, thread
or clock is in here: they are handed in, so that a network and a clock that are played can drive the very same thing.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from unstale import translate
from unstale.coordinator import actions, divergence, events
from unstale.coordinator.machine import LEASE
from unstale.coordinator.phase import Phase
from unstale.journal.recorder import Recorder
from unstale.log_rate_limit import about_peer, logger
from unstale.metrics.progress import Outcome
from unstale.server.buffered_transport import BufferedTransport
from unstale.server.client_limits import not_owner_error
from unstale.server.commands import Applied, Command, Crashed, Evaluated, NotSaved, QueueItem, Saved, StopNow
from unstale.server.deadlines import Deadlines
from unstale.server.delivery import DeliveryTracker
from unstale.server.error_replies import ErrorReplies
from unstale.server.executor import ActionExecutor
from unstale.server.hello_handler import HelloHandler
from unstale.server.negotiation import EncodingNegotiation
from unstale.server.sender import Sender
from unstale.server.sessions import Sessions
from unstale.server.state import Access, ExchangeSettings, RunState
from unstale.server.stats import ServerStats
from unstale.server.transfers import Transfers, defect_of_whole
from unstale.server.transport import Transport
from unstale.server.update_decoder import UpdateDecoder
from unstale.server.update_receiver import UpdateReceiver
from unstale_proto import codec
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Bye, Chunk, Error, Heartbeat, Hello, Message, Update

log = logger("unstale.server")


class ServerProtocol:
    """Whoever drives it calls `on_message` for each message and `on_result` for each result, and `flush` after them and
    at `due_s`, until it is `is_over`: the coordinator has finished and the clients know it. Then `outcome` is set.

    What follows from a message or a result is said by `flush`, when it is durable: a turn is one transaction.

    Args:
        transport: sends messages.
        clock: seconds of the run, never going back.
        state: parts of the run.
        settings: times and bounds.
        access: who may say what.
        compute: takes commands. Each one but ForgetCommand is answered by a result, in order.
        stats: counts.
        observe: told of every event and its actions.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Callable[[], float],
        *,
        state: RunState,
        settings: ExchangeSettings,
        compute: Callable[[Command], None],
        stats: ServerStats,
        access: Access | None = None,
        observe: actions.Observer | None = None,
    ) -> None:
        access = access or Access()
        coordinator = state.coordinator
        self._clock, self._coordinator, self._observe = clock, coordinator, observe
        self._recorder = Recorder(coordinator, state.journal)
        self._journal, self._stats, self._admission = state.journal, stats, state.admission
        self._welcome, self._sent = state.welcome, state.sent
        self._linger_s, self._return_s = settings.linger_s, settings.return_s
        self._leaves_early, self._stays, self._stops = True, settings.stays, False
        self._client_limits, self._may_speak = access.client_limits, access.may_speak
        self._sessions = Sessions(state.welcome.clients)
        self._delivery = DeliveryTracker()
        self._deadlines = Deadlines(coordinator, settings.task_timeout_s)
        self._transport = BufferedTransport(transport, clock)
        self._negotiation = EncodingNegotiation(
            state.welcome, state.dimension, state.frames[max(state.frames)]
        )
        self._sender = Sender(
            self._transport,
            self._sessions,
            frames=state.frames,
            encoded=state.encoded,
            negotiation=self._negotiation,
            welcome=state.welcome,
            learning_rate=state.learning_rate,
            is_evaluation_wanted=stats.own_evaluations.wanted,
            past_versions=max(coordinator.settings.stale_rounds.values(), default=0),
            chunk_bytes=settings.transfers.chunk_bytes,
        )
        self._executor = ActionExecutor(
            clock,
            state,
            compute=compute,
            stats=stats,
            client_limits=self._client_limits,
            sender=self._sender,
            delivery=self._delivery,
            deadlines=self._deadlines,
            sessions=self._sessions,
            prefetch=settings.looks_ahead,
        )
        self._receiver = UpdateReceiver(
            decoder=UpdateDecoder(
                state.staging,
                signature=state.welcome.signature,
                encodings=self._negotiation.updates,
                layout=self._negotiation.layout,
                admission=state.admission,
            ),
            recorder=self._recorder,
            executor=self._executor,
            sender=self._sender,
            stats=stats,
            perform=self._perform,
        )
        self._error_replies = ErrorReplies(
            clock, self._client_limits, stats, self._sender, self._sessions, self._handle
        )
        self._transfers = Transfers(
            clock,
            settings.transfers,
            state.partial_files,
            coordinator=coordinator,
            sender=self._sender,
            stats=stats,
            receiver=self._receiver,
        )
        self._hello_handler = HelloHandler(
            access,
            coordinator=coordinator,
            sessions=self._sessions,
            negotiation=self._negotiation,
            sender=self._sender,
            delivery=self._delivery,
            transfers=self._transfers,
            executor=self._executor,
            handle=self._handle,
        )
        self.outcome: Outcome | None = None

    @property
    def is_finishing(self) -> bool:
        """Whether the run has ended and only goodbyes are left. Any thread."""
        return self._executor.finish is not None and not self._stays

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to do."""
        return self.outcome is not None and not self._stays

    @property
    def due_s(self) -> float | None:
        """When `flush` has something to do next, if nothing happens before; None is never."""
        dues_s = [*self._executor.timers.values(), self._transfers.due_s, self._recorder.due_s(self._clock())]
        dues_s += self._deadlines.due_s, self._transport.due_s
        due_s = min((each_s for each_s in dues_s if each_s is not None), default=None)
        if self._executor.finish is not None and self.outcome is None and not self._executor.commands_open:
            leave_s = self._executor.finished_s + self._linger_s
            due_s = leave_s if due_s is None else min(due_s, leave_s)
        return due_s

    def payload_bytes_max(self, route: bytes) -> int:
        """A connection that speaks for no client has nothing to send but a hello."""
        return 0 if self._sessions.client_of(route) is None else self._negotiation.update_bytes_max

    def speaks(self, route: bytes) -> bool:
        """Whether a connection speaks for a client whose lease lasts. Any thread."""
        client_id = self._sessions.client_of(route)
        return client_id is not None and self._coordinator.is_active(client_id)

    def on_connection_cut(self, route: bytes) -> None:
        """A connection was cut for what came over it, which no client with good manners sends."""
        client_id = self._sessions.client_of(route)
        if client_id is not None:
            self._error_replies.quarantine(route, client_id)

    def resume(self) -> None:
        """Go on with a run whose state was read from its journal. Called once, before all else."""
        self._handle(events.Resumed(at_s=self._clock()))
        self._deadlines.resume(self._clock())
        if self._executor.finish is not None:  # whoever has not heard of the end is on the way here
            self._leaves_early, self._linger_s = False, max(self._linger_s, self._return_s)

    def flush(self, *, more_waits: bool = False) -> None:
        """Do what is due, make what happened durable, and say what follows. more_waits: messages have come that are not
        taken in yet. Raises UserError when it cannot be made durable: then nothing of it was said."""
        self._fire_timers(more_waits=more_waits)
        at_s = self._clock()
        for client_id, task_id in self._transfers.settle(at_s):
            self._handle(events.TaskLost(client_id=client_id, task_id=task_id, at_s=at_s))
        for expired in self._deadlines.expired(at_s, self._transfers.goes_on, more_waits=more_waits):
            self._handle(expired)
        self._commit_and_send()
        self._transport.flush()
        if self._executor.finish is not None and self.outcome is None:
            self._finish_if_done(self._executor.finish)

    def _fire_timers(self, *, more_waits: bool) -> None:
        at_s = self._clock()
        for timer in [name for name, due_s in self._executor.timers.items() if due_s <= at_s]:
            if timer == LEASE and more_waits and at_s < self._executor.timers[timer] + self._welcome.lease_s:
                continue  # after a pause of ours, signs of life may be among what waits
            if self._executor.timers.get(timer, at_s + 1) <= at_s:
                del self._executor.timers[timer]
                self._handle(events.TimerFired(timer=timer, at_s=at_s))

    def _commit_and_send(self) -> None:
        self._recorder.commit(durable=self._executor.finish is not None)
        self._stats.flush()  # what is said is counted already
        while (
            self._executor.after_commit
        ):  # an answer to a heartbeat may prove that a task was lost, and so on
            held, self._executor.after_commit = self._executor.after_commit, []
            for say, about in held:
                say(about)
            self._recorder.commit()
        self._stats.flush()

    # --- what the compute thread and the operator say ---

    def on_result(self, item: QueueItem) -> None:
        """Take in a result. Raises what the compute thread died of."""
        if isinstance(item, Applied):
            self._executor.commands_open -= 1
            self._applied(item)
        elif isinstance(item, Evaluated):
            self._executor.commands_open -= 1
            self._recorder.evaluated(item.version, self._clock(), item.evaluation, evaluate_s=item.evaluate_s)
            self._stats.evaluated(item, self._clock())
        elif isinstance(item, Saved | NotSaved):
            assert self._journal is not None
            self._executor.checkpointed(self._journal, item)
        elif isinstance(item, StopNow):
            self._stop()
        else:
            assert isinstance(item, Crashed)
            if not self._recorder.is_on:  # else clients wait for the run's next server
                self._executor.announce_failure("the server has crashed")
            raise item.error

    def _applied(self, applied: Applied) -> None:
        self._commit_and_send()  # tasks that carry the version before
        result = applied.result
        self._sent = result.sent
        self._admission.published(result)
        self._sender.publish(result.version, applied.frames, result.learning_rate, applied.encoded)
        self._stats.applied(applied, self._executor.wait_s)
        event = events.RoundApplied(version=result.version, at_s=self._clock())
        following = self._recorder.round_applied(
            event,
            result,
            digest=applied.digest,
            wait_s=self._executor.wait_s,
            compensate_s=applied.compensate_s,
            aggregate_s=applied.aggregate_s,
        )
        # A run that was told to stop meanwhile goes on later: no state may be kept in which it is over.
        going_on = None if self._resumes_later else self._journal
        ends = self._coordinator.phase is Phase.FINISHED
        if going_on is not None and (self._stops or going_on.wants_checkpoint(result.version, ends=ends)):
            self._executor.checkpoint(going_on)
        self._perform(event, following)
        if self._stops and self._executor.finish is None:
            self._handle(events.StopRequested(at_s=self._clock()))

    def _stop(self) -> None:
        """The operator ends the process. A run goes on from a checkpoint; none is written while a version is made."""
        self._stays = False
        if self._journal is not None and self._executor.finish is None:
            self._stops = self._coordinator.making is not None
            if self._stops:
                return
            self._executor.checkpoint(self._journal)
        self._handle(events.StopRequested(at_s=self._clock()))

    # --- what clients send us ---

    def on_message(
        self, route: bytes, header: bytes, frames: Sequence[memoryview] = (), *, key: str | None = None
    ) -> None:
        """A message came in over a connection. frames: its payload, not needed after the call. key: public key of the
        other side, as its handshake proved it; None in plain text."""
        at_s = self._clock()  # once: it is the time of all that the message brings about
        speaker = self._sessions.client_of(route)
        try:
            self._client_limits.check_rate(route, speaker, at_s)
            message = codec.decode(header)
            if speaker is not None:
                if speaker in self._client_limits.suspects:
                    self._client_limits.on_valid_message(speaker)
                if not self._may_speak(key, speaker):
                    self._sessions.forget(speaker)  # its key was revoked: nothing more is sent there
                    raise not_owner_error(speaker)
                self._sender.on_message_from(speaker)
            if isinstance(message, Hello):
                self._hello_handler.on_hello(route, speaker, message, key, at_s)
            elif isinstance(message, Bye):
                self._on_bye(route, speaker, message, at_s)
            elif self._executor.finish is not None and self._resumes_later:
                # Nothing is taken in: what clients have made they keep for the server that takes up the run.
                self._sender.send(route, translate.to_stop(self._executor.finish))
            elif isinstance(message, Error):
                self._on_error(speaker, message, at_s)
            else:
                self._handle_active(route, speaker, message, frames, at_s)
            self._send_deferred_task(route, at_s)
        except RemoteContractError as error:
            self._client_limits.on_refused(self._sessions.client_of(route), error.reason, at_s)
            self._error_replies.refuse(route, error)
        if (
            speaker is not None
            and speaker in self._client_limits.suspects
            and self._client_limits.is_quarantine_due(speaker)
        ):
            self._executor.send_after_commit(partial(self._error_replies.quarantine_if_due, route), speaker)

    @property
    def _resumes_later(self) -> bool:
        """Whether the run was interrupted, and is to be taken up by another server."""
        return (
            self._recorder.is_on
            and self._executor.finish is not None
            and self._executor.finish.reason == "shutdown"
        )

    def _send_deferred_task(self, route: bytes, at_s: float) -> None:
        client_id = self._sessions.client_of(route)
        owed = None if client_id is None else self._sender.take_deferred_task(client_id)
        if owed is not None and self._coordinator.awaits(owed.client_id, owed.task_id):
            if self._sender.may_carry(owed.version):
                self._executor.send_after_commit(self._executor.send_task, owed)
            else:
                self._handle(events.TaskLost(client_id=owed.client_id, task_id=owed.task_id, at_s=at_s))

    def _on_error(self, client_id: int | None, error: Error, at_s: float) -> None:
        """An error is never answered. One with a task gives that task back; one without is for people."""
        if client_id is None:
            self._stats.refused(Reason.HELLO_FIRST)
            return
        level = logging.DEBUG if error.reason is Reason.UNAVAILABLE else logging.WARNING
        log.log(
            level, "client %d: %r (%s)", client_id, error.message, error.reason, extra=about_peer(client_id)
        )
        if error.task_id is not None:
            self._handle_message(error, client_id, at_s)

    def _on_bye(self, route: bytes, client_id: int | None, bye: Bye, at_s: float) -> None:
        if self._executor.finish is not None and self._executor.finish.reason != "shutdown":
            self._executor.send_after_commit(
                partial(self._sender.send, route), Bye()
            )  # it ends when it hears this
        if client_id is None:
            return
        if self._executor.finish is None:
            log.info("client %d leaves: %r", client_id, bye.reason, extra=about_peer(client_id))
        self._sessions.forget(client_id)
        if self._resumes_later:
            return
        self._transfers.moved_on(client_id, at_s)
        self._handle_message(bye, client_id, at_s)

    def _handle_active(
        self, route: bytes, client_id: int | None, message: Message, frames: Sequence[memoryview], at_s: float
    ) -> None:
        if client_id is None or not self._coordinator.is_active(client_id):
            raise RemoteContractError(
                Reason.HELLO_FIRST, f"a {message.type} came before a hello on this connection"
            )
        if frames and isinstance(message, Update):  # most messages are one, and come whole
            self._receiver.receive(client_id, message, frames, at_s, defect_of_whole(message, frames))
        elif isinstance(message, Chunk):
            if self._transfers.take(client_id, message, frames, at_s):
                self._client_limits.refund(client_id, at_s)
            self._handle(events.HeartbeatReceived(client_id=client_id, at_s=at_s))
        elif self._transfers.take_in(client_id, message, frames, at_s):
            self._handle(events.HeartbeatReceived(client_id=client_id, at_s=at_s))
        elif isinstance(message, Update):
            self._receiver.receive(client_id, message, frames, at_s)
        elif isinstance(message, Heartbeat):
            self._handle_message(message, client_id, at_s)
            self._executor.send_after_commit(partial(self._answer_heartbeat, route, client_id), message)
        else:
            self._handle_message(message, client_id, at_s)
        if self._executor.finish is not None:  # it was told to stop, and may not have heard it
            self._executor.send_after_commit(
                partial(self._sender.send, route), translate.to_stop(self._executor.finish)
            )

    def _answer_heartbeat(self, route: bytes, client_id: int, beat: Heartbeat) -> None:
        self._sender.send(route, Heartbeat(number=beat.number, version=self._coordinator.version))
        lost = self._delivery.on_heartbeat(client_id, beat, self._coordinator.awaits)
        if lost is not None:
            self._handle(self._delivery.event_of_loss(client_id, lost, self._clock()))

    def _handle_message(self, message: Message, client_id: int, at_s: float) -> None:
        event = translate.to_event(message, client_id, at_s)
        if event is None:
            raise RemoteContractError(
                Reason.UNEXPECTED_TYPE, f"a server takes no {message.type} of this kind"
            )
        self._handle(event)

    # --- what the coordinator wants done ---

    def _handle(self, event: events.Event) -> None:
        self._perform(event, self._recorder.handle(event))

    def _perform(self, event: events.Event, following: Sequence[actions.Action]) -> None:
        if self._observe is not None:
            self._observe(event, following)
        self._executor.execute(following)
        if self._coordinator.consecutive_failures:
            self._give_up_if_diverged()

    def _give_up_if_diverged(self) -> None:
        """Raise DivergedError, having told the clients, when nobody makes updates that count."""
        why = divergence.reason(self._coordinator, self._admission.bounds.cause)
        if why is not None:
            self._commit_and_send()
            message = self._recorder.give_up(why)
            self._executor.announce_failure(why)
            raise divergence.DivergedError(message)

    # --- the last things ---

    def _finish_if_done(self, finish: actions.Finish) -> None:
        """Over when nothing is being computed and every client has said goodbye, or has had its time to."""
        waits = self._sessions.awaits_anyone(self._coordinator.is_active) or not self._leaves_early
        if self._executor.commands_open or (
            waits and self._clock() < self._executor.finished_s + self._linger_s
        ):
            return
        self.outcome = self._stats.ended(
            finish,
            self._coordinator.version,
            self._coordinator.updates_by_outcome,
            self._sent.digest,
            self._executor.finished_s,
        )
