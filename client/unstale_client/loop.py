"""The loop of a client process: one DEALER per hosted client, one thread for all of them, and a worker that trains."""

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Protocol
from weakref import WeakValueDictionary

import zmq

from unstale_client.actions import Action, PendingUpdate, Retire, Send, Settle, Train, Warn
from unstale_client.errors import UserError
from unstale_client.jobs import Crashed, Failed, Job, Ready, ReceivedModel, Result, Settlement
from unstale_client.models import Models
from unstale_client.net import files, sockets
from unstale_client.net.clock import now_s
from unstale_client.net.handshakes import Handshakes
from unstale_client.net.keys import Identity
from unstale_client.net.poller import Poller
from unstale_client.net.wakeable_queue import Ping, WakeableQueue
from unstale_client.outbox import Outbox
from unstale_client.partial_files import PartialFiles
from unstale_client.server_timeout import ServerTimeout
from unstale_client.session import ClientSession, State
from unstale_client.setting_names import CONFIGURATION, SettingNames
from unstale_client.timers import Timers
from unstale_proto import codec, encodings
from unstale_proto.errors import RemoteContractError
from unstale_proto.limits import TEXT_MAX
from unstale_proto.messages import Bye, Error, Message, ProcessStart, Stop, Welcome

log = logging.getLogger("unstale.client")

AWAY_S = 10.0  # without a connection, twice the longest reconnect interval, while other clients have one
CLOSING_SOCKETS_MAX = 1023  # ZeroMQ counts a socket until another thread has closed it


@dataclass(frozen=True, slots=True)
class StopNow:
    """The operator ends this process."""


QueueItem = Result | StopNow | Ping


@dataclass(slots=True)
class HostedClient:
    """A hosted client. finished: the result of its newest task, held until the client's device would be done."""

    session: ClientSession
    socket: zmq.Socket[bytes]
    finished: Ready | Failed | None = None
    finished_s: float = 0.0
    run_is_over: bool = False  # the server has finished the run

    @property
    def is_away(self) -> bool:
        return self.session.state is State.AWAY

    @property
    def is_in_the_run(self) -> bool:
        """Whether it takes part, or tries to."""
        return self.session.state is not State.OVER

    @property
    def due_s(self) -> float:
        """Time of its next timer; infinity for never."""
        session_s = inf if self.session.due_s is None else self.session.due_s
        return session_s if self.finished is None else min(session_s, self.finished_s)


class TaskWorker(Protocol):
    """Works on the tasks of all clients of a process, outside of the loop's thread, and posts the results."""

    def start(self) -> None: ...

    def submit(self, job: Job | Settlement) -> None:
        """Queue a task, or the verdict on an update; in this order."""

    def close(self) -> None:
        """End, and leave the outbox alone from here on."""


class Observer:
    """Hears of messages and results, in the loop's thread."""

    def sent(self, client_id: int, message: Message, payload_bytes: int) -> None:
        """A message was sent."""

    def received(self, client_id: int, message: Message, payload_bytes: int) -> None:
        """A message arrived."""

    def trained(self, result: Ready | Failed) -> None:
        """A task has a result that goes to the server: an update or a failure."""

    def superseded(self, result: Ready | Failed) -> None:
        """A result is not sent, because a newer task or another run came first."""


@dataclass(kw_only=True, eq=False)
class ClientLoop:
    """Hosts clients until the run is finished or `stop` is called."""

    server: str
    client_ids: range
    worker: Callable[[Callable[[Result], None]], TaskWorker]  # makes the worker, which posts results there
    heartbeat_s: float  # of the connections, longer with over 500; the welcome holds that of the clients
    linger_s: float  # time for unsent messages when the loop ends
    patience_s: float | None = None  # silence of the server after which the loop ends; None for never
    outbox: Outbox | None = None  # closed with the loop
    identity: Identity | None = None  # own key, and the key of the server; None for plain text
    observer: Observer = field(default_factory=Observer)
    names: SettingNames = CONFIGURATION

    def __post_init__(self) -> None:
        sockets.require_libzmq()
        files.allow_connections(len(self.client_ids), files_each=2)
        files.warn(log, files.port_shortage(len(self.client_ids)))
        self._queue: WakeableQueue[QueueItem] = WakeableQueue()
        self._worker = self.worker(self._queue.post)
        stored = {} if self.outbox is None else self.outbox.load()
        self._stored_runs = [pending.run_id for updates in stored.values() for pending in updates]
        self._context = sockets.new_context(sockets_max=len(self.client_ids) + CLOSING_SOCKETS_MAX)
        self._poller = Poller()
        self._poller.register(self._queue.fileno())
        self._clients: dict[int, HostedClient] = {}
        self._in_the_run = set(self.client_ids)
        self._timers = Timers()  # of the sessions and held results
        self._away = Timers()  # of clients without a connection: the time for another socket
        self._connected_s = 0.0  # time of the latest connection that was the only one
        self._client_of: dict[zmq.Socket[bytes], HostedClient] = {}
        self._received: WeakValueDictionary[tuple[str, int, str | None], ReceivedModel] = WeakValueDictionary()
        self._models = _models_of(self.client_ids.start, self.outbox)
        self._run_id: str | None = None  # of the first welcome
        self._stopped = False
        self._ended: list[Retire] = []
        self._unanswered: set[int] = set()  # clients whose goodbye at the end of the run has no answer
        self._dealer = partial(
            sockets.dealer,
            self._context,
            heartbeat_s=sockets.ping_s(self.heartbeat_s, len(self.client_ids)),
            linger_s=self.linger_s,
            identity=self.identity,
        )
        start = None if self.outbox is None else self.outbox.next_start()
        for client_id in self.client_ids:
            self._host(client_id, stored.get(client_id, ()), start)

    def _host(self, client_id: int, stored: Sequence[PendingUpdate], start: ProcessStart | None) -> None:
        socket = self._dealer()
        if not self._clients:  # address and key are the same for all clients
            self._watch_handshakes(socket)
        sockets.connect(socket, self.server, key=self.names.server)
        token = secrets.token_hex(16)
        session = ClientSession(
            client_id, token, stored, models=self._models, offers=encodings.NAMES, start=start, names=self.names
        )
        client = HostedClient(session, socket)
        self._clients[client_id] = self._client_of[socket] = client
        self._schedule(client)

    @property
    def sessions(self) -> list[ClientSession]:
        """Of the hosted clients."""
        return [client.session for client in self._clients.values()]

    def answers(self, within_s: float) -> bool:
        """Whether the loop's thread reads its queue. Another thread."""
        ping = Ping()
        self._queue.post(ping)
        return ping.answered.wait(within_s)

    def stop(self) -> None:
        """End soon, with a goodbye to the server. Any thread, signal handlers included."""
        self._queue.post(StopNow())

    def run(self) -> None:
        """Work until the end. Raises UserError when the server refuses a client, or is silent for too long."""
        self._server_timeout = ServerTimeout(self.server, self.patience_s, now_s(), names=self.names)
        self._worker.start()
        reason = "the client ends"
        try:
            while not self._stopped and self._in_the_run:
                self._turn()
        except UserError as error:
            reason = str(error)[:TEXT_MAX]
            raise
        finally:
            self._close(reason)
        messages = {retired.reason: retired.message for retired in self._ended}
        if messages and "finished" not in messages:
            raise UserError(next(iter(messages.values())))

    def _close(self, reason: str) -> None:
        for client in self._clients.values():
            self._execute(client, client.session.leave(reason))
        self._await_answers()
        self._handshakes.close()
        self._poller.close()
        for client in self._clients.values():
            client.socket.close()
        self._context.term()
        self._worker.close()
        self._queue.close()
        if all(client.run_is_over for client in self._clients.values()):
            self._models.close()
        if self.outbox is not None:
            for client_id, client in self._clients.items():
                if client.run_is_over and client.session.run_id is not None:
                    self.outbox.clear(client_id, client.session.run_id)
            self.outbox.close()

    def _await_answers(self) -> None:
        """Read until the server has answered all goodbyes, for `linger_s` at most. Closing a connection that has unread
        data resets it, which would discard a goodbye that has not left this machine.
        """
        for source in (self._queue.fileno(), self._handshakes.monitor):
            self._poller.unregister(source)
        until_s = now_s() + self.linger_s
        while self._unanswered and (left_s := until_s - now_s()) > 0:
            for source, _ in self._poller.poll(left_s):
                assert not isinstance(source, int)
                self._receive(self._client_of[source])

    # --- one turn ---

    def _turn(self) -> None:
        for source, readiness in self._poller.poll(self._timeout_s()):
            if isinstance(source, int):  # the queue
                for item in self._queue.drain():
                    self._handle(item)
            elif source is self._handshakes.monitor:
                self._handshakes.check()
            else:
                client = self._client_of[source]
                if readiness & zmq.POLLOUT and client.is_away:
                    self._execute(client, client.session.reachable(now_s()))
                if readiness & zmq.POLLIN:
                    self._receive(client)
        for client_id in self._models.woken():
            client = self._clients[client_id]
            self._execute(client, client.session.continue_download())
        self._run_timers(now_s())

    def _timeout_s(self) -> float | None:
        due_s = min(self._timers.due_s, self._server_timeout.due_s, self._reconnect_due_s)
        return None if due_s == inf else max(0.0, due_s - now_s())

    def _run_timers(self, at_s: float) -> None:
        for client_id in self._timers.take(at_s):
            client = self._clients[client_id]
            self._execute(client, client.session.tick(at_s))
            self._hand_over_if_due(client, at_s)
        if at_s >= self._reconnect_due_s:
            self._reconnect(at_s)
        warning = self._server_timeout.warning(at_s)
        if warning is not None:
            log.warning("%s", warning)

    # --- connections ---

    def _watch_handshakes(self, socket: zmq.Socket[bytes]) -> None:
        """Find out why a socket, not yet connected, gets no connection."""
        public = None if self.identity is None else self.identity.public
        self._handshakes = Handshakes(socket, self.server, public, (self.names.key, self.names.server_key))
        self._poller.register(self._handshakes.monitor)

    @property
    def _reconnect_due_s(self) -> float:
        """Time at which a client gets another socket; infinity for never, also while the watched client is away."""
        if self._client_of[self._handshakes.socket].is_away:
            return inf
        return max(self._away.due_s, self._connected_s + AWAY_S)  # after an outage, each needs time to reconnect

    def _reconnect(self, at_s: float) -> None:
        """Give the client that is away longest another socket, and watch that. ZeroMQ does not retry after a refusal,
        which only a watched socket reports; the key may have been revoked while others were connected.
        """
        client = self._clients[self._away.first]
        self._away.set(client.session.client_id, at_s + AWAY_S)
        self._poller.unregister(self._handshakes.monitor)
        self._handshakes.close()
        self._replace_socket(client)
        self._watch_handshakes(client.socket)
        sockets.connect(client.socket, self.server, key=self.names.server)
        self._schedule(client)

    def _replace_socket(self, client: HostedClient) -> None:
        self._poller.unregister(client.socket)
        del self._client_of[client.socket]
        client.socket.close()
        client.socket = self._dealer()
        self._client_of[client.socket] = client

    def _schedule(self, client: HostedClient) -> None:
        """Schedule the next turn of a client whose state or socket may have changed. Poll for output only without a
        connection: a connected socket is nearly always writable.
        """
        client_id, is_away = client.session.client_id, client.is_away
        if not client.is_in_the_run:
            self._in_the_run.discard(client_id)
        if is_away is not (client_id in self._away):
            at_s = now_s()
            if len(self._away) == len(self._in_the_run):
                self._connected_s = at_s
            self._away.set(client_id, at_s + AWAY_S if is_away else inf)
        self._timers.set(client_id, client.due_s)
        self._poller.register(client.socket, zmq.POLLIN | zmq.POLLOUT if is_away else zmq.POLLIN)

    # --- messages and results ---

    def _receive(self, client: HostedClient) -> None:
        while (received := sockets.receive(client.socket)) is not None:
            header, frames = received
            if (is_back := self._server_timeout.heard(now_s())) is not None:
                log.warning("%s", is_back)  # as the line before it
            try:
                message = codec.decode(header)
            except RemoteContractError as error:
                log.warning("a message from the server cannot be decoded: %s", error)
                self._send(client, Error(reason=error.reason, message=str(error), refused=error.refused), ())
                continue
            parcel = [frame.buffer for frame in frames]
            self.observer.received(client.session.client_id, message, sum(map(len, parcel)))
            if isinstance(message, Welcome):
                self._welcomed(message)
            else:
                self._expect_answer(client, message)
            self._execute(client, client.session.received(message, parcel, now_s()))

    def _expect_answer(self, client: HostedClient, message: Message) -> None:
        """A finished run ends with a goodbye of each client, which the server answers."""
        if isinstance(message, Stop) and message.reason == "finished" and client.is_in_the_run:
            self._unanswered.add(client.session.client_id)
        elif isinstance(message, Bye) and not client.is_in_the_run:
            self._unanswered.discard(client.session.client_id)

    def _welcomed(self, welcome: Welcome) -> None:
        self._server_timeout.lease_s = welcome.lease_s
        if self._run_id is not None:
            return
        self._run_id = welcome.run_id
        log.info("joined run %s of the server at %s", welcome.run_id, self.server)
        resent = self._stored_runs.count(welcome.run_id)
        dropped = len(self._stored_runs) - resent
        if resent:
            log.info("unacknowledged updates of an earlier process, sent again: %d", resent)
        if dropped:
            log.warning("unacknowledged updates of another run, dropped: %d", dropped)

    def _handle(self, item: QueueItem) -> None:
        match item:
            case Ping():
                item.answered.set()
            case Ready() | Failed():
                client = self._clients[item.job.client_id]
                if client.session.wants(item.job.welcome.run_id, item.job.task.task_id):
                    client.finished = item
                    client.finished_s = item.job.received_s + item.duration_s
                    self._timers.set(client.session.client_id, client.due_s)
                    self._hand_over_if_due(client, now_s())
                else:
                    self._discard(item)
            case StopNow():
                self._stopped = True
            case Crashed():
                raise item.error

    def _hand_over_if_due(self, client: HostedClient, at_s: float) -> None:
        """Give a result to its session, if the client's device would be done by now."""
        finished = client.finished
        if finished is None or at_s < client.finished_s:
            return
        client.finished = None
        job, run_id = finished.job, finished.job.welcome.run_id
        if not client.session.wants(run_id, job.task.task_id):
            self._discard(finished)  # another run has begun
            return
        self.observer.trained(finished)
        if isinstance(finished, Failed):
            level = logging.INFO if finished.is_declined else logging.WARNING
            log.log(level, "client %d: %s", job.client_id, finished.message)
            failed = client.session.failed(
                run_id, job.task.task_id, finished.message, finished.reason, is_code_error=finished.is_code_error
            )
            self._execute(client, failed)
        else:
            pending = finished.pending
            self._execute(client, client.session.trained(run_id, pending.update, pending.parcel))

    def _discard(self, result: Ready | Failed | None) -> None:
        """Drop a result that will never be sent, with the file and the state of an update."""
        if result is not None:
            self.observer.superseded(result)
        if isinstance(result, Ready):
            self._settle(result.job.client_id, result.pending.run_id, result.pending.number, accepted=False)

    def _settle(self, client_id: int, run_id: str, number: int, *, accepted: bool) -> None:
        settlement = Settlement(client_id=client_id, run_id=run_id, number=number, accepted=accepted)
        self._worker.submit(settlement)

    # --- actions of the sessions ---

    def _execute(self, client: HostedClient, actions: Sequence[Action]) -> None:
        client_id = client.session.client_id
        for action in actions:
            match action:
                case Send():
                    if not self._send(client, action.message, action.parcel):
                        client.session.unreachable()
                        break
                case Train():
                    self._discard(client.finished)  # of an older task
                    client.finished = None
                    self._worker.submit(self._job(client.session, action))
                case Settle():
                    self._settle(client_id, action.run_id, action.number, accepted=action.accepted)
                case Warn():
                    log.warning("client %d: %s", client_id, action.message)
                case Retire():
                    self._ended.append(action)
                    client.run_is_over = action.reason == "finished"
                    log.info("client %d: %s", client_id, action.message)
        self._schedule(client)

    def _job(self, session: ClientSession, train: Train) -> Job:
        run_id, task = train.welcome.run_id, train.task
        # Each client receives its own copy of a model. Jobs in the queue share the first one.
        key = run_id, task.version, task.encoding
        model = self._received.setdefault(key, ReceivedModel(train.parcel))
        return Job(
            client_id=session.client_id,
            welcome=train.welcome,
            task=task,
            model=model,
            is_wanted=lambda: session.wants(run_id, task.task_id),
            received_s=now_s(),
        )

    def _send(self, client: HostedClient, message: Message, frames: Sequence[memoryview]) -> bool:
        """Whether there was a connection."""
        if not sockets.send(client.socket, codec.encode(message), frames):
            return False
        self.observer.sent(client.session.client_id, message, sum(map(len, frames)))
        return True


def _models_of(first: int, outbox: Outbox | None) -> Models:
    """Stores partial models beside the outbox, if there is one."""
    partial_files = PartialFiles(None if outbox is None else outbox.folder, suffix=".model")
    prefix = f"{first}-"  # processes may share the folder
    return Models(
        lambda name: partial_files.open(prefix + name),
        lambda: PartialFiles().open("spare"),
        partial_names=[name.removeprefix(prefix) for name in partial_files.names if name.startswith(prefix)],
        delete=lambda name: partial_files.delete(prefix + name),
    )
