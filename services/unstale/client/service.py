"""The client process: one DEALER a hosted client, one loop for all of them, one worker thread that trains."""

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from weakref import WeakValueDictionary

import zmq

from unstale.client.actions import Action, Retire, Send, Settle, Train, Warn
from unstale.client.hosted_client import HostedClient
from unstale.client.models import Models
from unstale.client.outbox import Outbox
from unstale.client.server_timeout import ServerTimeout
from unstale.client.session import ClientSession, State
from unstale.client.stats import ClientStats
from unstale.client.worker import (
    Crashed,
    Durations,
    Failed,
    Job,
    Ready,
    ReceivedModel,
    Result,
    Settlement,
    Worker,
)
from unstale.config.training_context import TrainingContext
from unstale.errors import UserError
from unstale.journal.partial_files import PartialFiles
from unstale.metrics import catalogue, process
from unstale.metrics.http import PING_S, HttpService
from unstale.metrics.instruments import Instruments
from unstale.net import files, sockets
from unstale.net.clock import now_s
from unstale.net.handshakes import Handshakes
from unstale.net.keys import Identity
from unstale.net.wakeable_queue import Ping, WakeableQueue
from unstale_proto import codec, encodings
from unstale_proto.errors import RemoteContractError
from unstale_proto.limits import TEXT_MAX
from unstale_proto.messages import Bye, Error, Message, Stop, Welcome

log = logging.getLogger("unstale.client")

AWAY_S = 10.0  # without a connection, while others of the process have one; reconnecting takes half as long


@dataclass(frozen=True, slots=True)
class StopNow:
    """The operator wants this process to end."""


QueueItem = Result | StopNow | Ping


class ClientProcess:
    """Hosts clients until the run is finished or `stop` is called.

    Args:
        server: its address.
        client_ids: of the clients, one after the other.
        prepare: makes data, shares and model of the run that a welcome describes.
        heartbeat_s: of the links, in seconds. The welcome says that of the clients.
        linger_s: time that messages under way have when the process ends, in seconds.
        patience_s: end when nothing is heard from a server for so long, at the start or later; None waits for ever.
        durations: time that tasks of the run that a welcome describes take on the clients' devices. An update leaves no
            sooner. None for the time that they take here.
        outbox: where these clients keep what must outlive this process; it is closed with it. None for nowhere.
        identity: own key, and the key of the server; None for plain text.
        http_address: HOST:PORT of /metrics and checks; None for none.
    """

    def __init__(
        self,
        *,
        server: str,
        client_ids: range,
        prepare: Callable[[Welcome], TrainingContext],
        heartbeat_s: float,
        linger_s: float,
        patience_s: float | None = None,
        durations: Callable[[Welcome], Durations] | None = None,
        outbox: Outbox | None = None,
        identity: Identity | None = None,
        http_address: str | None = None,
    ) -> None:
        sockets.require_libzmq()
        files.allow_connections(len(client_ids), files_each=2)
        self._server = server
        self._patience_s = patience_s
        self._linger_s = linger_s
        self._queue: WakeableQueue[QueueItem] = WakeableQueue()
        self._worker = Worker(prepare, self._queue.post, durations, outbox)
        self._outbox = outbox
        self._found = {} if outbox is None else outbox.load()
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, max(1023, len(client_ids) + 16))
        self._poller = zmq.Poller()
        self._poller.register(self._queue.fileno(), zmq.POLLIN)
        self._lines: dict[int, HostedClient] = {}
        self._line_of: dict[zmq.Socket[bytes], HostedClient] = {}
        self._received: WeakValueDictionary[tuple[str, int, str | None], ReceivedModel] = (
            WeakValueDictionary()
        )
        self._coming = _models_of(client_ids.start, outbox)
        self._met = False
        self._stopped = False
        self._farewells: list[Retire] = []
        self._unanswered: set[int] = set()  # clients that said goodbye at the end of the run
        start = None if outbox is None else outbox.next_start()
        self._dealer = partial(
            sockets.dealer, self._context, heartbeat_s=heartbeat_s, linger_s=linger_s, identity=identity
        )
        self._public = None if identity is None else identity.public
        for client_id in client_ids:
            socket = self._dealer()
            if client_id == client_ids.start:  # address and key are the same for all of them
                self._watch_handshakes(socket)
            sockets.connect(socket, server)
            session = ClientSession(
                client_id,
                secrets.token_hex(16),
                self._found.get(client_id, ()),
                models=self._coming,
                offers=encodings.NAMES,
                start=start,
            )
            client = HostedClient(session, socket, away_s=now_s())
            self._lines[client_id] = client
            self._line_of[socket] = client
            self._poller.register(socket, zmq.POLLIN | zmq.POLLOUT)
        instruments = self._instruments()
        self._stats = ClientStats(instruments.record_all, now_s)
        self._http = None
        if http_address is not None:
            self._http = HttpService(
                http_address,
                instruments.registry,
                key="client.http_address",
                healthy=self._is_healthy,
                ready=self._is_ready,
            )
        self.http_address = None if self._http is None else self._http.address

    def _instruments(self) -> Instruments:
        instruments = Instruments(catalogue.CLIENT_CATALOGUE)
        process.describe(instruments)
        sessions = [client.session for client in self._lines.values()]
        for state in State:
            instruments.follow(catalogue.CLIENT_SESSIONS, (state.value,), partial(_in_state, sessions, state))
        instruments.follow(
            catalogue.CLIENT_UPDATES_KEPT, (), lambda: sum(session.unacknowledged for session in sessions)
        )
        return instruments

    def _is_healthy(self) -> bool:
        """Whether the loop turns."""
        ping = Ping()
        self._queue.post(ping)
        return ping.is_answered(PING_S)

    def _is_ready(self) -> bool:
        """Whether the server has welcomed every hosted client that has not ended."""
        return all(client.session.state in (State.IN, State.OVER) for client in self._lines.values())

    def stop(self) -> None:
        """End soon, telling the server. Any thread, signal handlers included."""
        self._queue.post(StopNow())

    def run(self) -> None:
        """Work until it is over. Raises UserError when the server refuses a client or says nothing for too long."""
        self._server_timeout = ServerTimeout(self._server, self._patience_s, now_s())
        self._worker.start()
        why = "the client ends"
        try:
            while not self._stopped and any(client.is_in_the_run for client in self._lines.values()):
                self._turn()
        except UserError as error:
            why = str(error)[:TEXT_MAX]
            raise
        finally:
            for client in self._lines.values():
                self._follow(client, client.session.leave(why))
            self._hear_goodbyes()
            self._handshakes.close()
            for client in self._lines.values():
                client.socket.close()
            self._context.term()
            self._worker.close()
            if self._http is not None:
                self._http.close()
            self._queue.close()
            self._close_outbox()
        reasons = {farewell.reason: farewell.message for farewell in self._farewells}
        if reasons and "finished" not in reasons:
            raise UserError(next(iter(reasons.values())))

    def _hear_goodbyes(self) -> None:
        """Read on until the server has answered them, for `linger_s` at most. To close a connection on which something
        still comes is to reset it, and what was said last is lost if it has not left this machine by then."""
        for other in (self._queue.fileno(), self._handshakes.monitor):
            self._poller.unregister(other)
        until_s = now_s() + self._linger_s
        while self._unanswered and (left_s := until_s - now_s()) > 0:
            for waiting, _ in self._poller.poll(int(left_s * 1000) + 1):
                self._take_in(self._line_of[waiting])

    def _close_outbox(self) -> None:
        if all(client.run_is_over for client in self._lines.values()):
            self._coming.close()
        if self._outbox is None:
            return
        for client_id, client in self._lines.items():
            if client.run_is_over and client.session.run_id is not None:
                self._outbox.clear(client_id, client.session.run_id)
        self._outbox.close()

    # --- one turn ---

    def _turn(self) -> None:
        for waiting, readiness in self._poller.poll(self._patience_ms()):
            if waiting == self._queue.fileno():
                for item in self._queue.drain():
                    self._open(item)
                continue
            if waiting is self._handshakes.monitor:
                self._handshakes.check()
                continue
            client = self._line_of[waiting]
            if readiness & zmq.POLLOUT and client.is_away:
                self._follow(client, client.session.reachable(now_s()))
            if readiness & zmq.POLLIN:
                self._take_in(client)
        for client_id in self._coming.woken():
            self._follow(self._lines[client_id], self._lines[client_id].session.go_on())
        at_s = now_s()
        for client in self._lines.values():
            if client.due_s <= at_s:
                self._follow(client, client.session.tick(at_s))
                self._hand_over_if_due(client, at_s)
        self._look_after(at_s)
        word = self._server_timeout.word(at_s)
        if word is not None:
            log.warning("%s", word)

    def _patience_ms(self) -> int | None:
        due_s = min((client.due_s for client in self._lines.values()), default=inf)
        due_s = min(due_s, self._server_timeout.due_s, self._look_after_s)
        return None if due_s == inf else max(0, int((due_s - now_s()) * 1000) + 1)

    def _watch_handshakes(self, socket: zmq.Socket[bytes]) -> None:
        """Hear why this socket, not yet connected, gets no connection."""
        settings = ("client.key", "client.server_key")
        self._handshakes = Handshakes(socket, self._server, self._public, settings)
        self._poller.register(self._handshakes.monitor, zmq.POLLIN)

    @property
    def _look_after_s(self) -> float:
        """When a client has been without a connection for so long that its handshakes are to be watched, while those
        that are watched now need not be; infinity is never."""
        if self._line_of[self._handshakes.socket].is_away:
            return inf
        return AWAY_S + min((client.away_s for client in self._lines.values() if client.is_away), default=inf)

    def _look_after(self, at_s: float) -> None:
        """Give such a client another socket, and watch that. ZeroMQ does not try again after a refusal, which only a
        watched socket tells of; the key may have been revoked while others were connected."""
        if at_s < self._look_after_s:
            return
        client = min(
            (client for client in self._lines.values() if client.is_away), key=lambda client: client.away_s
        )
        client.away_s = at_s
        self._poller.unregister(self._handshakes.monitor)
        self._handshakes.close()
        self._replace_socket(client)
        self._watch_handshakes(client.socket)
        self._connect(client)

    def _replace_socket(self, client: HostedClient) -> None:
        self._poller.unregister(client.socket)
        del self._line_of[client.socket]
        client.socket.close()
        client.socket = self._dealer()
        self._line_of[client.socket] = client

    def _connect(self, client: HostedClient) -> None:
        sockets.connect(client.socket, self._server)
        self._watch(client)

    def _welcomed(self, welcome: Welcome) -> None:
        self._server_timeout.welcomed(welcome.lease_s)
        if not self._met:
            self._met = True
            log.info("the server at %s welcomes us to run %s", self._server, welcome.run_id)
            self._mention_found(welcome.run_id)

    def _mention_found(self, run_id: str) -> None:
        """Say what becomes of updates that an earlier process left behind."""
        runs = [pending.run_id for updates in self._found.values() for pending in updates]
        self._found.clear()
        kept = runs.count(run_id)
        if kept:
            log.info("updates that a process before this one kept, and that are sent again: %d", kept)
        if len(runs) > kept:
            log.warning("updates of another run that were kept, and are dropped: %d", len(runs) - kept)

    def _take_in(self, client: HostedClient) -> None:
        while (received := sockets.receive(client.socket)) is not None:
            header, frames = received
            self._server_timeout.heard(now_s())
            try:
                message = codec.decode(header)
            except RemoteContractError as error:
                log.warning("the server sent what cannot be read: %s", error)
                self._send(client, Error(reason=error.reason, message=str(error)), ())
                continue
            payload_bytes = sum(len(frame.buffer) for frame in frames)
            self._stats.received(client.session.client_id, message, payload_bytes)
            if isinstance(message, Welcome):
                self._welcomed(message)
            elif isinstance(message, Stop) and message.reason == "finished" and client.is_in_the_run:
                self._unanswered.add(client.session.client_id)
            elif isinstance(message, Bye) and not client.is_in_the_run:
                self._unanswered.discard(client.session.client_id)
            self._follow(
                client, client.session.received(message, [frame.buffer for frame in frames], now_s())
            )

    def _open(self, item: QueueItem) -> None:
        if isinstance(item, Ping):
            item.answered.set()
        elif isinstance(item, Ready | Failed):
            self._stats.trained(item)
            client = self._lines[item.job.client_id]
            if client.session.wants(item.job.welcome.run_id, item.job.task.task_id):
                client.finished = item
                client.finished_s = item.job.received_s + item.duration_s
                self._hand_over_if_due(client, now_s())
            else:
                self._give_up(item)
        elif isinstance(item, StopNow):
            self._stopped = True
        else:
            assert isinstance(item, Crashed)
            raise item.error

    def _hand_over_if_due(self, client: HostedClient, at_s: float) -> None:
        """Give a session what came of its task, if its device is done by now."""
        finished = client.finished
        if finished is None or at_s < client.finished_s:
            return
        client.finished = None
        job, run_id = finished.job, finished.job.welcome.run_id
        if not client.session.wants(run_id, job.task.task_id):
            self._give_up(finished)  # the run is another one since
        elif isinstance(finished, Failed):
            log.warning("client %d: %s", job.client_id, finished.message)
            self._follow(client, client.session.failed(run_id, job.task.task_id, finished.message))
        else:
            pending = finished.pending
            self._follow(client, client.session.trained(run_id, pending.update, pending.parcel))

    def _give_up(self, finished: Ready | Failed | None) -> None:
        """An update that is ready will never be sent: its file goes, and what its client would have kept."""
        if isinstance(finished, Ready):
            self._stats.superseded()
            self._settle(
                finished.job.client_id, finished.pending.run_id, finished.pending.number, accepted=False
            )

    def _settle(self, client_id: int, run_id: str, number: int, *, accepted: bool) -> None:
        settlement = Settlement(client_id=client_id, run_id=run_id, number=number, accepted=accepted)
        self._worker.submit(settlement)

    # --- what the sessions want done ---

    def _follow(self, client: HostedClient, instructions: Sequence[Action]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send):
                if not self._send(client, instruction.message, instruction.parcel):
                    client.session.unreachable()
                    break
            elif isinstance(instruction, Train):
                self._give_up(client.finished)  # an older task's, which this one takes the place of
                client.finished = None
                self._worker.submit(self._job(client.session, instruction))
            elif isinstance(instruction, Settle):
                self._settle(
                    client.session.client_id,
                    instruction.run_id,
                    instruction.number,
                    accepted=instruction.accepted,
                )
            elif isinstance(instruction, Warn):
                log.warning("client %d: %s", client.session.client_id, instruction.message)
            else:
                self._farewells.append(instruction)
                client.run_is_over = instruction.reason == "finished"
                log.info("client %d: %s", client.session.client_id, instruction.message)
        self._watch(client)

    def _watch(self, client: HostedClient) -> None:
        """Wait for a connection only while there is none: a connected socket can nearly always be written to."""
        if not client.is_away:
            client.away_s = inf
        elif client.away_s == inf:
            client.away_s = now_s()
        self._poller.register(client.socket, zmq.POLLIN | zmq.POLLOUT if client.is_away else zmq.POLLIN)

    def _job(self, session: ClientSession, train: Train) -> Job:
        run_id, task = train.welcome.run_id, train.task
        # Each client is sent the model for itself. Of equal ones only the first is kept while jobs wait for it.
        key = run_id, task.version, task.encoding
        model = self._received.setdefault(key, ReceivedModel(train.parcel))
        return Job(
            client_id=session.client_id,
            welcome=train.welcome,
            task=task,
            model=model,
            wanted=lambda: session.wants(run_id, task.task_id),
            received_s=now_s(),
        )

    def _send(self, client: HostedClient, message: Message, frames: Sequence[memoryview]) -> bool:
        """Whether it could be handed to a connection."""
        try:
            client.socket.send(codec.encode(message), zmq.NOBLOCK | (zmq.SNDMORE if frames else 0))
        except zmq.Again:
            return False
        for position, frame in enumerate(frames, start=1):
            client.socket.send(frame, zmq.SNDMORE if position < len(frames) else 0, copy=False)
        self._stats.sent(client.session.client_id, message, sum(map(len, frames)))
        return True


def _in_state(sessions: Sequence[ClientSession], state: State) -> int:
    return sum(session.state is state for session in sessions)


def _models_of(first: int, outbox: Outbox | None) -> Models:
    """Where models come that go in chunks: beside the outbox, if there is one."""
    partial_files = PartialFiles(None if outbox is None else outbox.folder, suffix=".model")
    ours = f"{first}-"  # others may have clients of their own in that folder
    return Models(
        lambda name: partial_files.open(ours + name),
        lambda: PartialFiles().open("spare"),
        found=[name.removeprefix(ours) for name in partial_files.found if name.startswith(ours)],
        delete=lambda name: partial_files.delete(ours + name),
    )
