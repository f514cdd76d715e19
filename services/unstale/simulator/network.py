"""Clients whose messages pass the toxics of a scenario, on simulated connections.

A client is a `unstale_client.session.ClientSession`, as over sockets; its messages pass the `toxics.link.ToxicLink`,
as in the injector. Payloads are not sent: an update is computed when it arrives.

Every client has sent its hello when the run starts. Heartbeats are simulated only for clients of which a toxic may lose
a message, because nothing depends on the others.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from unstale import translate
from unstale.coordinator import events
from unstale.coordinator.machine import Coordinator
from unstale.errors import UserError
from unstale.server.client_limits import ClientLimits
from unstale.simulator import corruption
from unstale.simulator.event_queue import EventQueue
from unstale.simulator.parts import Times
from unstale.simulator.simulated_client import Given, Relay, ServerSide, SimulatedClient, Traffic, may_lose
from unstale.toxics.in_flight import Direction, InFlightMessage
from unstale.toxics.link import Applied, ToxicLink
from unstale_client.actions import Action, Send, Settle, Train
from unstale_client.session import ClientSession, State
from unstale_proto import codec
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.limits import HOLDING_MAX
from unstale_proto.messages import Ack, Error, Heartbeat, Hello, Message, Task, Update, Welcome

RECONNECT_S = 0.1  # as `unstale_client.net.sockets`
NO_SIGNATURE = "0" * 64  # one process holds both sides, so there is nothing to compare
STALLED_MESSAGES_MAX = 20_000  # messages of a client without a single update that counts: over a day of hellos
_RUN = "0" * 32


class Network:
    """Connections of the clients that toxics touch.

    Args:
        toxics: Of the run's conditions.
        event_queue: Of the simulation.
        server: Receives the messages.
        coordinator: Of the run.
        times: As in the welcome.
        model_bytes: Payload of a model.
        update_bytes: Payload of an update.
        relay: Applied to every message.
        client_limits: Quarantine.

    Attributes:
        clients: By id.
        traffic: Counts of messages.
        stalled_messages: Messages since the last update that was accepted.
    """

    def __init__(
        self,
        toxics: Sequence[Applied],
        *,
        event_queue: EventQueue,
        server: ServerSide,
        coordinator: Coordinator,
        times: Times,
        model_bytes: int,
        update_bytes: int,
        relay: Relay | None,
        client_limits: ClientLimits,
    ) -> None:
        self.traffic = Traffic()
        self._toxics = toxics
        self._link = ToxicLink(toxics, coordinator.settings.seed)
        self._event_queue = event_queue
        self._server = server
        self._coordinator = coordinator
        self._model_bytes, self._update_bytes = model_bytes, update_bytes
        self._relay = relay
        self._client_limits = client_limits
        self.clients: dict[int, SimulatedClient] = {}
        self.stalled_messages = 0
        # Not a valid one: a model without tensors, so that a task without a payload fits it.
        fields: Any = {"run_id": _RUN, "version": 0, "tensors": (), "signature": NO_SIGNATURE}
        self._welcome = Welcome.model_construct(**fields, heartbeat_s=times.heartbeat_s, lease_s=times.lease_s)

    def join(self, client_id: int) -> None:
        """Connect a client whose messages a toxic touches; others do not pass the network."""
        toxics = [one.toxic for one in self._toxics if one.clients is None or client_id in one.clients]
        if not toxics:
            return
        session = ClientSession(client_id, f"{client_id:032x}")
        client = SimulatedClient(session, has_heartbeats=any(map(may_lose, toxics)))
        client.is_named = client.is_known = True
        client.counts.update({(Direction.UP, "hello"): 1, (Direction.DOWN, "welcome"): 1})
        self.clients[client_id] = client
        client.session.reachable(self._event_queue.now_s)
        self._follow(client, client.session.received(self._welcome, (), self._event_queue.now_s))

    def has_heartbeats(self, client_id: int) -> bool:
        """Whether the heartbeats of a client are simulated."""
        client = self.clients.get(client_id)
        return client is not None and client.has_heartbeats

    # --- from the server ---

    def send_task(self, client_id: int, task: Task) -> bool:
        """Send a task to its client. False without a connection: the next hello will not name the task."""
        client = self.clients[client_id]
        if not client.is_known:
            return False
        client.given[task.task_id] = Given(task, self._event_queue.now_s)
        if len(client.given) > 2 * HOLDING_MAX:
            client.given.popitem(last=False)
        self._send(client, Direction.DOWN, task)
        return True

    def send_to_client(self, client_id: int, message: Message) -> None:
        """Send a message to a client, if the server knows its connection."""
        client = self.clients[client_id]
        if client.is_known:
            self._send(client, Direction.DOWN, message)

    def exclude(self, client_id: int, error: RemoteContractError) -> None:
        """A client is in quarantine: it must send a hello again."""
        client = self.clients[client_id]
        self._refuse(client, error)
        client.is_known = False

    def on_task_given_back(self, client_id: int, task: Task, reason: Reason) -> None:
        """A client has no update of its task, and no longer holds it."""
        client = self.clients[client_id]
        verdict = Ack(task_id=task.task_id, outcome="rejected", first_outcome="rejected", reason=reason)
        self._follow(client, client.session.received(verdict, (), self._event_queue.now_s))

    # --- the server's side of a connection ---

    def _arrive_at_server(
        self, client: SimulatedClient, connection: int, message: Message, damaged: InFlightMessage | None
    ) -> None:
        """A message has arrived at the server, which handles it as `server.protocol.ServerProtocol` does."""
        if connection != client.connection:
            self.traffic.lost += 1
            return
        client_id, was_known = client.session.client_id, client.is_known
        try:
            self._handle(client, message, damaged)
        except RemoteContractError as error:
            self.traffic.lost += error.reason not in (Reason.HELLO_FIRST, Reason.QUARANTINED)
            if was_known:
                self._client_limits.on_refused(client_id, error.reason, self._event_queue.now_s)
            self._refuse(client, error)
            if self._client_limits.is_quarantine_due(client_id):
                self._server.quarantine(client_id)

    def _handle(self, client: SimulatedClient, message: Message, damaged: InFlightMessage | None) -> None:
        """Raises RemoteContractError where the message is refused."""
        client_id = client.session.client_id
        if damaged is not None and not isinstance(message, Update):  # an update is computed before it is read
            message, _ = corruption.read(message, (), damaged)
            damaged = None
        if client.is_known and damaged is None:
            self._client_limits.on_valid_message(client_id)
        if isinstance(message, Hello):
            self._on_hello(client, message)
        elif not client.is_known or not self._coordinator.is_active(client_id):
            raise RemoteContractError(Reason.HELLO_FIRST, "hello first")
        elif isinstance(message, Update):
            self._server.take_update(client_id, self._task_of(client, message), damaged)
        elif isinstance(message, Heartbeat):
            self._on_heartbeat(client_id, message)
        else:
            event = translate.to_event(message, client_id, self._event_queue.now_s)
            if event is not None:
                self._server.executor.handle(event)

    def _on_hello(self, client: SimulatedClient, hello: Hello) -> None:
        at_s = self._event_queue.now_s
        self._client_limits.on_hello(b"", None, hello.client_id, at_s)
        same_connection, client.is_known = client.is_known, True
        self._send(client, Direction.DOWN, self._welcome)
        self._server.executor.on_hello(hello, at_s, same_connection=same_connection)

    def _on_heartbeat(self, client_id: int, heartbeat: Heartbeat) -> None:
        executor, at_s = self._server.executor, self._event_queue.now_s
        executor.handle(events.HeartbeatReceived(client_id=client_id, at_s=at_s))
        self.send_to_client(client_id, Heartbeat(number=heartbeat.number, version=self._coordinator.version))
        self.traffic.tasks_lost += executor.on_heartbeat_answered(client_id, heartbeat)

    def _refuse(self, client: SimulatedClient, error: RemoteContractError) -> None:
        self._send(client, Direction.DOWN, Error(reason=error.reason, message=str(error)))

    # --- the client's side of a connection ---

    def _arrive_at_client(
        self, client: SimulatedClient, connection: int, message: Message, damaged: InFlightMessage | None
    ) -> None:
        received: Message | None = message
        if connection == client.connection and damaged is not None:
            received = self._read_damaged(client, message, damaged)
        if connection != client.connection or received is None:
            self.traffic.lost += 1
            return
        self._follow(client, client.session.received(received, (), self._event_queue.now_s))

    def _read_damaged(self, client: SimulatedClient, message: Message, damaged: InFlightMessage) -> Message | None:
        """The message that a client reads from damaged bytes; None for none."""
        try:
            received, _ = corruption.read(message, (), damaged)
        except RemoteContractError:
            return None
        if isinstance(message, Task) and isinstance(received, Task):
            if received.signature == message.signature and received != message:
                return None  # a task that does not exist: there is no model for it
            self._server.on_model_damaged(client.session.client_id, message, damaged)
        return received

    def _follow(self, client: SimulatedClient, following: Sequence[Action]) -> None:
        for action in following:
            if isinstance(action, Send):
                if not client.is_open:
                    client.session.unreachable()
                    break
                self._send(client, Direction.UP, action.message)
            elif isinstance(action, Train):
                self._begin(client, action.task)
            elif isinstance(action, Settle):
                self._server.settle(client.session.client_id, action.number, accepted=action.accepted)
        self._schedule_tick(client)

    def _begin(self, client: SimulatedClient, task: Task) -> None:
        client_id = client.session.client_id
        done_s = self._event_queue.now_s + self._server.duration_s(client_id, task.number)
        self._event_queue.schedule(done_s, client_id, partial(self._done, client, task), task)

    def _done(self, client: SimulatedClient, task: Task) -> None:
        """The device has finished a task, unless a newer one came meanwhile. The update is computed when it arrives;
        until then its header stands for one of the same size.
        """
        update = Update(
            task_id=task.task_id,
            base_version=task.version,
            kind="gradient",
            num_examples=1000,
            steps=1,
            loss=1.0,
            learning_rate=task.learning_rate,
            signature=task.signature,
            payload_bytes=self._update_bytes,
        )
        self._follow(client, client.session.trained(_RUN, update, ()))

    def _schedule_tick(self, client: SimulatedClient) -> None:
        due_s = client.session.due_s
        if _has_ticks(client) and due_s is not None and (client.ticks_s is None or due_s < client.ticks_s):
            client.ticks_s = due_s
            self._event_queue.schedule(due_s, client.session.client_id, partial(self._tick, client, due_s))

    def _tick(self, client: SimulatedClient, at_s: float) -> None:
        if at_s == client.ticks_s:  # else it was called sooner
            client.ticks_s = None
            if _has_ticks(client):
                self._follow(client, client.session.tick(at_s))

    # --- the network ---

    def _send(self, client: SimulatedClient, direction: Direction, message: Message) -> None:
        """Send a message, through the toxics if they know its client."""
        if isinstance(message, Update) and message.task_id not in client.given:
            return  # a task that was taken back long ago
        self.traffic.sent += 1
        self._give_up_without_progress()
        if self._relay is not None and message is not self._welcome:
            message = self._relay(message)
        client_id, now_s = client.session.client_id, self._event_queue.now_s
        client.is_named = client.is_named or isinstance(message, Hello)
        deliver = self._arrive_at_server if direction is Direction.UP else self._arrive_at_client
        if not client.is_named:
            arrive = partial(deliver, client, client.connection, message, None)
            self._event_queue.schedule(now_s, client_id, arrive)
            return
        self._send_through_toxics(client, direction, message, deliver)

    def _send_through_toxics(
        self, client: SimulatedClient, direction: Direction, message: Message, deliver: Callable[..., None]
    ) -> None:
        client_id = client.session.client_id
        task = self._task_of(client, message) if isinstance(message, Update) else None
        copies = self._link.send(self._flight(client, direction, message))
        self.traffic.lost += not copies
        self.traffic.copied += max(0, len(copies) - 1)
        for copy in copies:
            act: Callable[[], None]
            if copy.cuts:
                act = partial(self._cut, client, client.connection, copy.down_s)
            elif copy.declined:
                act = partial(self._decline, client_id, copy.number)
            else:
                act = partial(deliver, client, client.connection, message, copy if copy.damage else None)
            arrives = not copy.cuts and not copy.declined
            self._event_queue.schedule(copy.due_s, client_id, act, task if arrives else None)

    def _flight(self, client: SimulatedClient, direction: Direction, message: Message) -> InFlightMessage:
        now_s, header_bytes = self._event_queue.now_s, len(codec.encode(message))
        began_s, attempt, version, payload_bytes = now_s, 0, None, 0
        if isinstance(message, Task):
            number, version, payload_bytes = message.task_id, message.version, self._model_bytes
        elif isinstance(message, Update):
            given = client.given[message.task_id]
            number, began_s, attempt = message.task_id, given.began_s, given.updates
            given.updates += 1
            payload_bytes = self._update_bytes
            self.traffic.resent += attempt > 0
        else:
            number = client.counts[direction, message.type]
            client.counts[direction, message.type] += 1
        return InFlightMessage(
            client_id=client.session.client_id,
            direction=direction,
            type=message.type,  # type: ignore[arg-type]
            number=number,
            sent_s=now_s,
            due_s=now_s,
            began_s=began_s,
            size_bytes=header_bytes + payload_bytes,
            header_bytes=header_bytes,
            version=version,
            attempt=attempt,
        )

    def _decline(self, client_id: int, task_id: int) -> None:
        self.traffic.declined += 1
        self._server.executor.handle(
            events.TaskDeclined(client_id=client_id, task_id=task_id, at_s=self._event_queue.now_s)
        )

    def _cut(self, client: SimulatedClient, connection: int, down_s: float) -> None:
        self.traffic.lost += 1
        if connection != client.connection:
            return  # that connection is gone already
        self.traffic.cuts += 1
        client.connection += 1
        client.is_open = client.is_named = client.is_known = False
        client_id = client.session.client_id
        self._link.forget_client(client_id)
        at_s = self._event_queue.now_s + RECONNECT_S + down_s
        self._event_queue.schedule(at_s, client_id, partial(self._connect, client))

    def _connect(self, client: SimulatedClient) -> None:
        """The connection is open again. A client that did not notice the cut learns it when it next sends."""
        client.is_open = True
        if client.session.state is State.AWAY:
            self._follow(client, client.session.reachable(self._event_queue.now_s))

    def _task_of(self, client: SimulatedClient, update: Update) -> Task:
        return client.given[update.task_id].task

    def _give_up_without_progress(self) -> None:
        self.stalled_messages += 1
        if self.stalled_messages > STALLED_MESSAGES_MAX * (1 + len(self.clients)):
            raise UserError(
                f"nothing comes through: {self.stalled_messages:,} messages since the last update that counts, at "
                f"version {self._coordinator.version}; the scenario loses too much"
            )


def _has_ticks(client: SimulatedClient) -> bool:
    """Whether the client sends messages by itself: simulated heartbeats, or hellos until it is welcome again."""
    return client.has_heartbeats or client.session.state is State.GREETING
