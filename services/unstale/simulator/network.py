"""Clients whose messages go through the toxics of a scenario: their own sessions, on played connections.

A client is what it is over sockets, a `client.session.ClientSession`; its messages are flights through the
`toxics.link.ToxicLink`, as in the injector. What they carry is not sent: an update is computed when it comes in.

Everybody has said hello when the run starts. Heartbeats are played only for clients of whom a toxic may lose something,
because only then something depends on them.
"""

from collections.abc import Sequence
from functools import partial

from unstale import translate
from unstale.client.actions import Action, Send, Settle, Train
from unstale.client.session import GREETING_S, ClientSession, State
from unstale.coordinator import events
from unstale.errors import UserError
from unstale.server.client_limits import ClientLimits
from unstale.server.delivery import DeliveryTracker
from unstale.simulator import corruption
from unstale.simulator.event_queue import EventQueue
from unstale.simulator.simulated_client import Given, Relay, ServerSide, SimulatedClient, Traffic, may_lose
from unstale.toxics.in_flight import Direction, InFlightMessage
from unstale.toxics.link import Applied, ToxicLink
from unstale_proto import codec
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.limits import HOLDING_MAX
from unstale_proto.messages import Ack, Error, Heartbeat, Hello, Message, Task, Update, Welcome

RECONNECT_S = 0.1  # as `net.sockets`
NO_SIGNATURE = "0" * 64  # one process holds both sides, so there is nothing to compare
STALLED_MESSAGES_MAX = (
    20_000  # messages of a client without a single update that counts: over a day of hellos
)
_RUN = "0" * 32


class Network:
    """toxics: of the run's conditions. seed: of the run. heartbeat_s, lease_s: as the server tells clients.
    model_bytes, update_bytes: of their payloads. client_limits: says whom the server keeps out."""

    def __init__(
        self,
        toxics: Sequence[Applied],
        seed: int,
        *,
        event_queue: EventQueue,
        server: ServerSide,
        heartbeat_s: float,
        lease_s: float,
        model_bytes: int,
        update_bytes: int,
        relay: Relay,
        client_limits: ClientLimits,
    ) -> None:
        self.traffic = Traffic()
        self._toxics = toxics
        self._link = ToxicLink(toxics, seed)
        self._event_queue = event_queue
        self._server = server
        self._model_bytes, self._update_bytes = model_bytes, update_bytes
        self._relay = relay
        self._client_limits = client_limits
        self._remotes: dict[int, SimulatedClient] = {}
        self._delivery = DeliveryTracker()
        self._stalled_messages = 0
        # Not a valid one: a model without tensors, so that a task without a payload fits it.
        told = {"run_id": _RUN, "version": 0, "tensors": (), "signature": NO_SIGNATURE}
        self._welcome = Welcome.model_construct(**told, heartbeat_s=heartbeat_s, lease_s=lease_s)  # type: ignore[arg-type]

    def join(self, client_id: int) -> None:
        """A client says hello, and is welcome. Nothing where no toxic touches its messages."""
        its = [one.toxic for one in self._toxics if one.clients is None or client_id in one.clients]
        if not its:
            return
        client = SimulatedClient(ClientSession(client_id, f"{client_id:032x}"), beats=any(map(may_lose, its)))
        client.is_named = client.is_known = True
        client.counts.update({(Direction.UP, "hello"): 1, (Direction.DOWN, "welcome"): 1})
        self._remotes[client_id] = client
        client.session.reachable(self._event_queue.now_s)
        self._follow(client, client.session.received(self._welcome, (), self._event_queue.now_s))

    def __contains__(self, client_id: int) -> bool:
        """Whether a client's messages go through it."""
        return client_id in self._remotes

    def beats(self, client_id: int) -> bool:
        """Whether the heartbeats of a client are played."""
        client = self._remotes.get(client_id)
        return client is not None and client.beats

    def progressed(self) -> None:
        """An update was accepted."""
        self._stalled_messages = 0

    # --- what the server says ---

    def give(self, client_id: int, task: Task) -> None:
        """Send a task to its client."""
        client = self._remotes[client_id]
        if not client.is_known:
            return  # no connection to send it over: the next hello will not name it
        client.given[task.task_id] = Given(task, self._event_queue.now_s)
        if len(client.given) > 2 * HOLDING_MAX:
            client.given.popitem(last=False)
        self._delivery.sent(client_id, task.task_id)
        self._send(client, Direction.DOWN, task)

    def tell(self, client_id: int, message: Message) -> None:
        """Send a message to a client, if there is a connection that is known to be its."""
        client = self._remotes[client_id]
        if isinstance(message, Ack) and message.outcome == "accepted":
            self._delivery.accepted(client_id)
        if client.is_known:
            self._send(client, Direction.DOWN, message)

    def shut_out(self, client_id: int) -> None:
        """Keep a client out for a while that was refused again and again."""
        at_s, client = self._event_queue.now_s, self._remotes.get(client_id)
        why = self._client_limits.quarantine(client_id, at_s)
        if client is None:
            self._greet_later(client_id)
        else:
            self._refuse(client, why)
            client.is_known = False
        self._server.handle(events.ClientLeft(client_id=client_id, at_s=at_s))

    def takes_back(self, client_id: int, task: Task) -> None:
        """A client could not make an update of its task, and holds it no more."""
        client = self._remotes[client_id]
        verdict = Ack(
            task_id=task.task_id, outcome="rejected", first_outcome="rejected", reason=Reason.NON_FINITE
        )
        self._follow(client, client.session.received(verdict, (), self._event_queue.now_s))

    def _take_in(
        self, client: SimulatedClient, line: int, message: Message, damaged: InFlightMessage | None
    ) -> None:
        """A message has come to the server. What it does is what `server.protocol.ServerProtocol` does."""
        if line != client.line:
            self.traffic.lost += 1
            return
        client_id, was_known = client.session.client_id, client.is_known
        try:
            self._attend(client, message, damaged)
        except RemoteContractError as error:
            self.traffic.lost += error.reason not in (Reason.HELLO_FIRST, Reason.QUARANTINED)
            if was_known:
                self._client_limits.on_refused(client_id, error.reason, self._event_queue.now_s)
            self._refuse(client, error)
            if self._client_limits.is_quarantine_due(client_id):
                self.shut_out(client_id)

    def _attend(self, client: SimulatedClient, message: Message, damaged: InFlightMessage | None) -> None:
        """Raises RemoteContractError for what is refused."""
        client_id, at_s = client.session.client_id, self._event_queue.now_s
        if damaged is not None and not isinstance(message, Update):  # an update is computed before it is read
            message, _ = corruption.read(message, (), damaged)
            damaged = None
        if client.is_known and damaged is None:
            self._client_limits.on_valid_message(client_id)
        if isinstance(message, Hello):
            self._client_limits.on_hello(b"", None, client_id, at_s)
            same_connection, client.is_known = client.is_known, True
            if not same_connection:
                expired = self._delivery.expired_by_hello(message, self._server.awaits, at_s)
                if expired is not None:
                    self._server.handle(expired)
                self._delivery.forget(client_id)
            self._send(client, Direction.DOWN, self._welcome)
            self._server.handle(translate.to_client_joined(message, at_s, same_connection=same_connection))
            if not same_connection:
                self._delivery.on_hello(message, self._server.awaits)
        elif not client.is_known or not self._server.is_active(client_id):
            raise RemoteContractError(Reason.HELLO_FIRST, "hello first")
        elif isinstance(message, Update):
            self._server.take_update(client_id, self._task_of(client, message), damaged)
        elif isinstance(message, Heartbeat):
            self._answer(client_id, message)
        else:
            event = translate.to_event(message, client_id, at_s)
            if event is not None:
                self._server.handle(event)

    def _refuse(self, client: SimulatedClient, error: RemoteContractError) -> None:
        self._send(client, Direction.DOWN, Error(reason=error.reason, message=str(error)))

    def _answer(self, client_id: int, beat: Heartbeat) -> None:
        self.tell(client_id, Heartbeat(number=beat.number, version=self._server.version))
        lost = self._delivery.on_heartbeat(client_id, beat, self._server.awaits)
        at_s = self._event_queue.now_s
        self._server.handle(events.HeartbeatReceived(client_id=client_id, at_s=at_s))
        if lost is not None:
            self.traffic.tasks_lost += 1
            self._server.handle(self._delivery.event_of_loss(client_id, lost, at_s))

    # --- what the client does ---

    def _greet_later(self, client_id: int) -> None:
        """A client whose messages take no time was not let in, and says hello again, as its session would."""
        at_s = self._event_queue.now_s + GREETING_S
        self._event_queue.schedule(at_s, client_id, partial(self._greet, client_id))

    def _greet(self, client_id: int) -> None:
        at_s = self._event_queue.now_s
        try:
            self._client_limits.on_hello(b"", None, client_id, at_s)
        except RemoteContractError:
            self._greet_later(client_id)
        else:
            self._server.handle(events.ClientJoined(client_id=client_id, at_s=at_s))

    def _hear(
        self, client: SimulatedClient, line: int, message: Message, damaged: InFlightMessage | None
    ) -> None:
        """A message has come to the client."""
        if line != client.line:
            self.traffic.lost += 1
            return
        if damaged is not None:
            heard = self._damaged_for(client, message, damaged)
            if heard is None:
                self.traffic.lost += 1
                return
            message = heard
        self._follow(client, client.session.received(message, (), self._event_queue.now_s))

    def _damaged_for(
        self, client: SimulatedClient, message: Message, damaged: InFlightMessage
    ) -> Message | None:
        """What a client makes of damaged bytes; None for nothing."""
        try:
            heard, _ = corruption.read(message, (), damaged)
        except RemoteContractError:
            return None
        if isinstance(message, Task) and isinstance(heard, Task):
            if heard.signature == message.signature and heard != message:
                return None  # another task than there is: nobody has its model
            self._server.got_damaged(client.session.client_id, message, damaged)
        return heard

    def _follow(self, client: SimulatedClient, instructions: Sequence[Action]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send):
                if not client.is_open:
                    client.session.unreachable()
                    break
                self._send(client, Direction.UP, instruction.message)
            elif isinstance(instruction, Train):
                self._begin(client, instruction.task)
            elif isinstance(instruction, Settle):
                self._server.settle(
                    client.session.client_id, instruction.number, accepted=instruction.accepted
                )
        self._wind(client)

    def _begin(self, client: SimulatedClient, task: Task) -> None:
        client_id = client.session.client_id
        done_s = self._event_queue.now_s + self._server.duration_s(client_id, task.number)
        self._event_queue.schedule(done_s, client_id, partial(self._done, client, task), task)

    def _done(self, client: SimulatedClient, task: Task) -> None:
        """The device has finished a task, unless it was given a newer one meanwhile. What it made will be seen when it
        comes in: until then the header stands for one of the same size."""
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

    def _wind(self, client: SimulatedClient) -> None:
        """Have the session called when it wants to be."""
        due_s = client.session.due_s
        if _is_wound(client) and due_s is not None and (client.ticks_s is None or due_s < client.ticks_s):
            client.ticks_s = due_s
            self._event_queue.schedule(due_s, client.session.client_id, partial(self._tick, client, due_s))

    def _tick(self, client: SimulatedClient, at_s: float) -> None:
        if at_s == client.ticks_s:  # else it was called sooner
            client.ticks_s = None
            if _is_wound(client):
                self._follow(client, client.session.tick(at_s))

    # --- the network ---

    def _send(self, client: SimulatedClient, direction: Direction, message: Message) -> None:
        """Put a message on its way."""
        if isinstance(message, Update) and message.task_id not in client.given:
            return  # so old that it was taken back long ago
        self.traffic.sent += 1
        self._give_up_without_progress()
        message = message if message is self._welcome else self._relay(message)
        client_id, now_s = client.session.client_id, self._event_queue.now_s
        client.is_named = client.is_named or isinstance(message, Hello)
        deliver = self._take_in if direction is Direction.UP else self._hear
        if not client.is_named:  # nobody knows whose it is, so no toxic touches it
            self._event_queue.schedule(now_s, client_id, partial(deliver, client, client.line, message, None))
            return
        flight = self._flight(client, direction, message)
        task = self._task_of(client, message) if isinstance(message, Update) else None
        out = self._link.send(flight)
        self.traffic.lost += not out
        self.traffic.copied += max(0, len(out) - 1)
        for one in out:
            if one.cuts:
                cut = partial(self._cut, client, client.line, one.down_s)
                self._event_queue.schedule(one.due_s, client_id, cut)
            elif one.declined:
                self._event_queue.schedule(
                    one.due_s, client_id, partial(self._decline, client_id, one.number)
                )
            else:
                damaged = one if one.damage else None
                arrive = partial(deliver, client, client.line, message, damaged)
                self._event_queue.schedule(one.due_s, client_id, arrive, task)

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
        self._server.handle(
            events.TaskDeclined(client_id=client_id, task_id=task_id, at_s=self._event_queue.now_s)
        )

    def _cut(self, client: SimulatedClient, line: int, down_s: float) -> None:
        self.traffic.lost += 1
        if line != client.line:
            return  # that connection is gone already
        self.traffic.cuts += 1
        client.line += 1
        client.is_open = client.is_named = client.is_known = False
        client_id = client.session.client_id
        self._link.forget_client(client_id)
        at_s = self._event_queue.now_s + RECONNECT_S + down_s
        self._event_queue.schedule(at_s, client_id, partial(self._connect, client))

    def _connect(self, client: SimulatedClient) -> None:
        """There is a connection again. A client that did not notice learns it when it next says something."""
        client.is_open = True
        if client.session.state is State.AWAY:
            self._follow(client, client.session.reachable(self._event_queue.now_s))

    def _task_of(self, client: SimulatedClient, update: Update) -> Task:
        return client.given[update.task_id].task

    def _give_up_without_progress(self) -> None:
        self._stalled_messages += 1
        if self._stalled_messages > STALLED_MESSAGES_MAX * (1 + len(self._remotes)):
            raise UserError(
                f"nothing comes through: {self._stalled_messages:,} messages since the last update that counts, at "
                f"version {self._server.version}; the scenario loses too much"
            )


def _is_wound(client: SimulatedClient) -> bool:
    """Whether its client says something by itself: heartbeats if they are played, or hello until it is let in again."""
    return client.beats or client.session.state is State.GREETING
