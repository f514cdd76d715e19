"""The protocol of the server, without sockets, threads and clocks, so that tests can drive it with faults."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from unstale import translate
from unstale.config.settings import APP
from unstale.coordinator import actions, events, snapshot
from unstale.coordinator.phase import Phase
from unstale.gateway.transport import BufferedTransport, Transport
from unstale.journal.journal import Journal
from unstale.journal.recorder import Recorder
from unstale.log_rate_limit import about_peer, logger
from unstale.metrics.progress import Outcome
from unstale.server import commands
from unstale.server.client_limits import check_participant, not_owner_error
from unstale.server.downloads import Downloads
from unstale.server.executor import ActionExecutor
from unstale.server.sender import Sender
from unstale.server.sessions import EncodingNegotiation, Sessions
from unstale.server.slot_scheduler import SlotScheduler
from unstale.server.state import ProtocolSettings, RunState
from unstale.server.stats import ServerStats
from unstale.server.transfers import Transfers, defect_of_whole
from unstale_proto import codec
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.limits import FLOAT_BYTES
from unstale_proto.messages import Bye, Chunk, Error, Heartbeat, Hello, Message, Stop, Update

log = logger("unstale.server")


class ServerProtocol:
    """The server's side of a run. Call `on_message` and `on_result`, then `flush`, which is also due at `due_s`, until
    `is_over`. Then `outcome` is set.

    Messages that follow from an event are sent by `flush`, once the event is durable: one transaction for each turn.
    `compute` takes commands; each but ForgetCommand and PrecomputeCommand is answered by a result, in order.
    """

    def __init__(
        self,
        settings: ProtocolSettings,
        state: RunState,
        transport: Transport,
        *,
        clock: Callable[[], float],
        compute: Callable[[commands.Command], None],
        stats: ServerStats,
        observe: actions.Observer | None = None,
    ) -> None:
        self._settings, self._clock, self._stats = settings, clock, stats
        self._coordinator = coordinator = state.coordinator
        self._journal, self._admission, self._welcome = state.journal, state.admission, state.welcome
        self._client_limits = settings.client_limits
        self._sent = state.sent
        self._linger_s, self._leaves_early = settings.linger_s, True
        self._stays, self._stops = settings.stays, False
        self.outcome: Outcome | None = None
        self._recorder = Recorder(coordinator, state.journal)
        self._sessions = Sessions(state.welcome.clients)
        self._negotiation = EncodingNegotiation(state.welcome, state.dimension, state.frames[max(state.frames)])
        self._transport = BufferedTransport(transport, clock)
        bounds = settings.transfers
        scheduler = partial(
            SlotScheduler,
            self._sessions.owner_of,
            grace_s=coordinator.settings.lease_s,
            chunk_bytes=bounds.chunk_bytes,
            payload_bytes=FLOAT_BYTES * sum(self._negotiation.layout),
        )
        self._sender = Sender(
            transport=self._transport,
            sessions=self._sessions,
            negotiation=self._negotiation,
            frames=state.frames,
            encoded=state.encoded,
            welcome=state.welcome,
            learning_rate=state.learning_rate,
            is_evaluation_wanted=stats.own_evaluations.is_wanted,
            past_versions=coordinator.settings.stale_rounds_max,
            downloads=Downloads(
                chunk_bytes=bounds.chunk_bytes,
                scheduler=scheduler(slots=bounds.versions, slow_slots=bounds.versions // 2),
            ),
            clock=clock,
            accepted_task=coordinator.accepted_task if state.welcome.model == APP else None,
        )
        self._executor = ActionExecutor(
            clock=clock,
            recorder=self._recorder,
            outbox=self._sender,
            compute=compute,
            stats=stats,
            observe=observe,
            staging=state.staging,
            admission=state.admission,
            client_limits=settings.client_limits,
            task_timeout_s=settings.task_timeout_s,
            prefetches=settings.prefetches,
        )
        self._transfers = Transfers(
            state, bounds, scheduler(slots=bounds.places), sender=self._sender, executor=self._executor, stats=stats
        )

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
        """Time at which `flush` is due if nothing happens before; None for never."""
        executor = self._executor
        dues_s = [self._transfers.due_s, self._recorder.due_s(self._clock()), self._transport.due_s]
        due_s = min([executor.timers.due_s, *(each_s for each_s in dues_s if each_s is not None)])
        if executor.finish is not None and self.outcome is None and not executor.commands_open:
            due_s = min(due_s, executor.finished_s + self._linger_s)
        return None if due_s == inf else due_s

    def payload_bytes_max(self, route: bytes) -> int:
        """Largest payload of a connection: 0 before its hello."""
        return 0 if self._sessions.client_of(route) is None else self._negotiation.update_bytes_max

    def speaks(self, route: bytes) -> bool:
        """Whether a connection speaks for an active client. Any thread."""
        client_id = self._sessions.client_of(route)
        return client_id is not None and self._coordinator.is_active(client_id)

    def resume(self) -> None:
        """Resume a run whose state was read from its journal. Called once, first."""
        self._executor.handle(events.Resumed(at_s=self._clock()))
        self._executor.timers.resume(self._clock())
        if self._executor.finish is not None:  # clients that do not know of the end connect soon
            self._leaves_early, self._linger_s = False, max(self._linger_s, self._settings.return_s)

    def flush(self, *, more_waits: bool = False) -> None:
        """Handle timers, make all events durable, and send what follows from them. Raises UserError before it is sent.

        more_waits: messages have arrived that are not handled yet.
        """
        at_s, executor = self._clock(), self._executor
        # After a pause of this process, heartbeats and answers may be among the messages that wait.
        extra_s = self._welcome.lease_s if more_waits else 0.0
        for event in executor.timers.due_events(at_s, self._transfers.goes_on, extra_s=extra_s):
            if isinstance(event, events.TaskExpired):
                why = "client %d has not answered task %d in time"
                log.warning(why, event.client_id, event.task_id, extra=about_peer(event.client_id))
            executor.handle(event)
        at_s = self._clock()
        for client_id, task_id in self._transfers.flush(at_s):
            executor.handle(events.TaskLost(client_id=client_id, task_id=task_id, at_s=at_s))
        executor.commit_and_send()
        self._transport.flush()
        if executor.finish is not None and self.outcome is None:
            self._finish_if_done(executor.finish)

    def _finish_if_done(self, finish: actions.Finish) -> None:
        """End when no command is open and every client has left or has had its time to."""
        waits = self._sessions.awaits_anyone(self._coordinator.is_active) or not self._leaves_early
        if self._executor.commands_open or (waits and self._clock() < self._executor.finished_s + self._linger_s):
            return
        self.outcome = self._stats.ended(
            finish,
            self._coordinator.version,
            self._coordinator.updates_by_outcome,
            self._sent.digest,
            self._executor.finished_s,
        )

    # --- results, and the operator ---

    def on_result(self, item: commands.QueueItem) -> None:
        """Handle a result or an order. Re-raises the exception that ended the compute thread."""
        if isinstance(item, commands.Applied):
            self._applied(item)
        elif isinstance(item, commands.Evaluated):
            self._executor.on_evaluated(item)
        elif isinstance(item, commands.Saved | commands.NotSaved):
            self._checkpointed(item)
        elif isinstance(item, commands.StopNow):
            self._stop()
        elif isinstance(item, commands.ConnectionCut):
            client_id = self._sessions.client_of(item.route)
            if client_id is not None:
                self._quarantine(item.route, client_id)
        elif isinstance(item, commands.ConnectionLost):
            self._sender.lost(item.route, item.delivery)
        else:
            assert isinstance(item, commands.Crashed)
            if not self._recorder.is_on:  # else clients wait for the run's next server
                self._executor.announce_failure("the server has crashed")
            raise item.error

    def _applied(self, applied: commands.Applied) -> None:
        self._sent = applied.result.sent
        event, following = self._executor.record_round(applied)
        # A run that was stopped meanwhile is resumed later: no state may be stored in which it is over.
        journal = None if self._resumes_later else self._journal
        ends = self._coordinator.phase is Phase.FINISHED
        if journal is not None and (self._stops or journal.wants_checkpoint(event.version, ends=ends)):
            self._checkpoint(journal)
        self._executor.execute(event, following)
        if self._stops and self._executor.finish is None:
            self._executor.handle(events.StopRequested(at_s=self._clock()))

    def _stop(self) -> None:
        """End the process for the operator, with a checkpoint to resume from, after the round that is being applied."""
        self._stays = False
        if self._journal is not None and self._executor.finish is None:
            self._stops = self._coordinator.making is not None
            if self._stops:
                return
            self._checkpoint(self._journal)
        self._executor.handle(events.StopRequested(at_s=self._clock()))

    def _checkpoint(self, journal: Journal) -> None:
        """Write the current state to disk, after the database: no checkpoint is newer than that."""
        journal.commit(durable=True)
        self._executor.submit(
            commands.CheckpointCommand(
                version=self._coordinator.version,
                seq=journal.begin_checkpoint(),
                coordinator=snapshot.taken(self._coordinator),
                admission=self._admission.bounds.state_dict(),
            )
        )

    def _checkpointed(self, item: commands.Saved | commands.NotSaved) -> None:
        assert self._journal is not None
        self._executor.commands_open -= 1
        if isinstance(item, commands.Saved):
            self._journal.saved(item.version, item.seq, item.file, item.size_bytes, self._clock())
        else:
            self._journal.not_saved(item.version, item.error)
        self._stats.checkpointed(item)

    # --- messages ---

    def on_message(
        self, route: bytes, header: bytes, frames: Sequence[memoryview] = (), *, key: str | None = None
    ) -> None:
        """Handle a message, whose frames are not needed after the call. key: proved by the handshake, if any."""
        at_s = self._clock()  # once: the time of all events that follow
        speaker = self._sessions.client_of(route)
        message: Message | None = None
        try:
            self._client_limits.check_rate(route, speaker, at_s)
            message = codec.decode(header)
            if speaker is not None:
                self._check_speaker(speaker, key)
            if isinstance(message, Hello):
                self._on_hello(route, speaker, message, key, at_s)
            elif isinstance(message, Bye):
                self._on_bye(route, speaker, message, at_s)
            elif self._executor.finish is not None and self._resumes_later:
                # Clients keep their updates for the server that resumes the run.
                self._sender.send(route, translate.to_stop(self._executor.finish))
            elif isinstance(message, Error):
                self._on_error(speaker, message, at_s)
            else:
                self._handle_active(route, speaker, message, frames, at_s)
            self._send_deferred_task(route, at_s)
        except RemoteContractError as error:
            self._client_limits.on_refused(self._sessions.client_of(route), error.reason, at_s)
            self._refuse(route, error, error.refused if message is None else message.type)
        if speaker is not None and self._client_limits.is_quarantine_due(speaker):
            self._executor.send_after_commit(partial(self._quarantine_if_due, route), speaker)

    def _check_speaker(self, speaker: int, key: str | None) -> None:
        """Note a message of a client that could be read. Raises RemoteContractError when its key was revoked."""
        self._client_limits.on_valid_message(speaker)
        if not self._settings.may_speak(key, speaker):
            self._sessions.forget(speaker)  # nothing more is sent there
            raise not_owner_error(speaker)
        self._sender.on_message_from(speaker)

    @property
    def _resumes_later(self) -> bool:
        """Whether the run was interrupted, and another server resumes it."""
        return self._recorder.is_on and self._executor.finish is not None and self._executor.finish.reason == "shutdown"

    def _send_deferred_task(self, route: bytes, at_s: float) -> None:
        client_id = self._sessions.client_of(route)
        owed = None if client_id is None else self._sender.take_deferred_task(client_id)
        if owed is not None and self._coordinator.awaits(owed.client_id, owed.task_id):
            if self._sender.may_carry(owed.version):
                self._executor.send_after_commit(self._executor.send_task, owed)
            else:
                self._executor.handle(events.TaskLost(client_id=owed.client_id, task_id=owed.task_id, at_s=at_s))

    def _on_hello(self, route: bytes, speaker: int | None, hello: Hello, key: str | None, at_s: float) -> None:
        """Decide which connection speaks for a client. speaker: client that this connection spoke for before."""
        client_id, finish = hello.client_id, self._executor.finish
        check_participant(client_id, self._coordinator.settings)
        if not self._settings.may_speak(key, client_id):
            raise not_owner_error(client_id)
        if finish is None:
            self._client_limits.on_hello(route, speaker, client_id, at_s)
        is_superseded = self._sessions.is_superseded(hello, active=self._coordinator.is_active(client_id))
        if finish is not None:  # its goodbye comes over this connection, unless another process has taken it over
            if not is_superseded:
                self._sessions.admit(hello, route)
            self._sender.send(route, translate.to_stop(finish))
            return
        stop = Stop(reason="superseded", version=self._coordinator.version)
        if is_superseded:
            self._sender.send(route, stop)
            return
        if not self._sender.send(route, self._negotiation.welcome(hello, self._coordinator.version)):
            return  # the process has ended since
        same_connection = self._sessions.is_said_again(client_id, hello.session, route)
        superseded = self._sessions.admit(hello, route)
        self._negotiation.admit(hello)
        self._transfers.on_order_proved(client_id)
        if not same_connection:
            self._transfers.moved_on(client_id, at_s)
        self._sessions.owners[client_id] = self._settings.owner_of(key, client_id)
        if superseded is not None:
            self._sender.send(superseded, stop)
        self._sender.on_message_from(client_id)
        self._executor.on_hello(hello, at_s, same_connection=same_connection)

    def _on_error(self, client_id: int | None, error: Error, at_s: float) -> None:
        """An error with a task gives that task back; one without is only logged. An error is never answered."""
        if client_id is None:
            self._stats.refused(Reason.HELLO_FIRST)
            return
        level = logging.DEBUG if error.reason is Reason.UNAVAILABLE else logging.WARNING
        cause = translate.cause_of(error)
        log.log(level, "client %d: %r (%s)", client_id, error.message, cause, extra=about_peer(client_id))
        if error.task_id is not None:
            if error.reason is not Reason.UNAVAILABLE:
                self._executor.client_error = f"client {client_id}: {error.message!r}"
            if self._coordinator.awaits(client_id, error.task_id):
                self._stats.given_back(cause)
            self._handle_message(error, client_id, at_s)

    def _on_bye(self, route: bytes, client_id: int | None, bye: Bye, at_s: float) -> None:
        if self._executor.finish is not None and self._executor.finish.reason != "shutdown":
            # The client ends when it receives this.
            self._executor.send_after_commit(partial(self._sender.send, route), Bye())
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
            raise RemoteContractError(Reason.HELLO_FIRST, f"a {message.type} came before a hello on this connection")
        if frames and isinstance(message, Update):  # the most frequent message
            self._transfers.receive(client_id, message, frames, at_s, defect_of_whole(message, frames))
        elif isinstance(message, Chunk):
            if self._transfers.take(client_id, message, frames, at_s):
                self._client_limits.refund(client_id, at_s)
            self._executor.handle(events.HeartbeatReceived(client_id=client_id, at_s=at_s))
        elif self._transfers.on_message(client_id, message, frames, at_s):
            self._executor.handle(events.HeartbeatReceived(client_id=client_id, at_s=at_s))
        elif isinstance(message, Update):
            self._transfers.receive(client_id, message, frames, at_s)
        else:
            self._handle_message(message, client_id, at_s)
            if isinstance(message, Heartbeat):
                self._executor.send_after_commit(partial(self._answer_heartbeat, route, client_id), message)
        if self._executor.finish is not None:  # it may not have received its stop
            stop = translate.to_stop(self._executor.finish)
            self._executor.send_after_commit(partial(self._sender.send, route), stop)

    def _answer_heartbeat(self, route: bytes, client_id: int, heartbeat: Heartbeat) -> None:
        self._sender.send(route, Heartbeat(number=heartbeat.number, version=self._coordinator.version))
        self._transfers.on_order_proved(client_id)
        self._executor.on_heartbeat_answered(client_id, heartbeat)

    def _handle_message(self, message: Message, client_id: int, at_s: float) -> None:
        event = translate.to_event(message, client_id, at_s)
        if event is None:
            raise RemoteContractError(Reason.UNEXPECTED_TYPE, f"a server takes no {message.type} of this kind")
        self._executor.handle(event)

    # --- refusals ---

    def _refuse(self, route: bytes, error: RemoteContractError, refused: str | None = None) -> None:
        """Count a message that is refused, and answer it. refused: its type."""
        self._stats.refused(error.reason)
        if self._client_limits.may_answer(route, error.reason, self._clock()):
            self._sender.send(route, Error(reason=error.reason, message=str(error), refused=refused))

    def _quarantine_if_due(self, route: bytes, client_id: int) -> None:
        if self._client_limits.is_quarantine_due(client_id):  # else it is in quarantine
            self._quarantine(route, client_id)

    def _quarantine(self, route: bytes, client_id: int) -> None:
        """Exclude a client from the run for a while."""
        why = self._client_limits.quarantine(client_id, self._clock())
        log.warning("%s", why, extra=about_peer(client_id))
        self._stats.quarantined()
        self._refuse(route, why)
        self._sessions.forget(client_id)
        self._executor.handle(events.ClientLeft(client_id=client_id, at_s=self._clock()))
