"""Sends messages to connections and clients, and models with tasks.

The model is wrapped into frames once per version, and every message that carries it refers to them; one that is too
large for that is announced with the task, and goes in chunks (`Downloads`). A client that was sent a model is sent no
other until something was heard of it, so that a slow one holds one model in our memory and not one a round.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from unstale import translate
from unstale.coordinator import actions
from unstale.server.downloads import Downloads, Sent
from unstale.server.sessions import EncodingNegotiation, Sessions
from unstale.server.transport import Delivery, Transport
from unstale_proto import codec
from unstale_proto.codec import Prepared
from unstale_proto.messages import Ack, Message, Welcome
from unstale_proto.transfer import checksum

ACCEPTED = Prepared(Ack(task_id=1, outcome="accepted", first_outcome="accepted"))


@dataclass(frozen=True, slots=True)
class _Model:
    """What is sent of a version, in one encoding."""

    payload_bytes: int
    wrapped: Sequence[Any] = ()  # frames that go with the task, none when they go in chunks
    checksum: str | None = None  # when they go in chunks


@dataclass(kw_only=True, eq=False)
class Sender:
    """Sends messages and models. Protocol thread only."""

    transport: Transport
    sessions: Sessions
    negotiation: EncodingNegotiation
    frames: InitVar[Mapping[int, Sequence[memoryview]]]  # float32 payload of each version that tasks may carry
    encoded: InitVar[Mapping[int, Sequence[memoryview]]]
    """The same in the encoding of the run; empty where that is float32."""
    welcome: Welcome  # of the run: its id and the signature of its model
    learning_rate: float  # eta_l of tasks
    is_evaluation_wanted: Callable[[int, int], bool]
    """Whether the task of a client, at a version, asks for an evaluation."""
    past_versions: int  # age in rounds of the oldest model that tasks may carry
    downloads: Downloads  # sends models that are larger than a chunk
    clock: Callable[[], float]
    accepted_task: Callable[[int], int] | None = None
    """Newest task of a client whose update was accepted; None where tasks do not name it."""
    _tasks: dict[tuple[Sent, bool], Prepared] = field(init=False, default_factory=dict)
    """Headers by model, and whether it is to be evaluated."""
    _models: dict[Sent, _Model] = field(init=False, default_factory=dict)
    _awaiting_reply: set[int] = field(init=False, default_factory=set)
    """Clients that were sent a model and have not been heard of since."""
    _deferred: dict[int, actions.SendTask] = field(init=False, default_factory=dict)

    def __post_init__(
        self, frames: Mapping[int, Sequence[memoryview]], encoded: Mapping[int, Sequence[memoryview]]
    ) -> None:
        for version, its_frames in frames.items():
            self._add(version, its_frames, encoded.get(version, ()))

    def publish(
        self, version: int, frames: Sequence[memoryview], learning_rate: float, encoded: Sequence[memoryview] = ()
    ) -> None:
        """From now on tasks may carry this version, and have this learning rate."""
        self.learning_rate = learning_rate
        self._tasks.clear()
        self._add(version, frames, encoded)
        for is_encoded in (False, True):
            outdated = (version - self.past_versions - 1, is_encoded)
            self._models.pop(outdated, None)
            self.downloads.models.pop(outdated, None)

    def _add(self, version: int, frames: Sequence[memoryview], encoded: Sequence[memoryview]) -> None:
        self._add_model((version, False), frames)
        if encoded:
            self._add_model((version, True), encoded)

    def _add_model(self, model: Sent, frames: Sequence[memoryview]) -> None:
        size_bytes = sum(map(len, frames))
        if size_bytes > self.downloads.chunk_bytes:
            self._models[model] = _Model(size_bytes, checksum=checksum(frames))
            self.downloads.models[model] = frames
        else:
            self._models[model] = _Model(size_bytes, self.transport.wrap(frames))

    def may_carry(self, version: int) -> bool:
        """Whether tasks may carry this version now."""
        return (version, False) in self._models

    def sent_to(self, client_id: int, version: int) -> Sent:
        """The model that a client is sent of a version."""
        return version, self.negotiation.takes_models(client_id)

    def send_task(self, action: actions.SendTask) -> bool:
        """Send a task with its model, now or after the next message of its client. Whether it was sent now."""
        client_id = action.client_id
        sent = self.sent_to(client_id, action.version)
        model = self._models.get(sent)
        assert model is not None, f"{action}, and at hand are {list(self._models)}"
        self._deferred.pop(client_id, None)
        route = self.sessions.route_of(client_id)
        if route is None:
            return False  # gone since: its lease runs out, and its task with it
        if client_id in self._awaiting_reply:
            self._deferred[client_id] = action
            return False
        self._awaiting_reply.add(client_id)
        evaluate = self.is_evaluation_wanted(client_id, action.version)
        task = self._tasks.get((sent, evaluate)) or self._prepare(action, sent, model, evaluate=evaluate)
        accepted = {} if self.accepted_task is None else {"accepted_task": self.accepted_task(client_id)}
        header = task.header(task_id=action.task_id, number=action.number, **accepted)
        if not self._deliver(route, header, model.wrapped):
            return False
        if model.checksum is not None:
            self.downloads.announced(client_id, action.task_id, sent, self.clock())
        return True

    def _prepare(self, action: actions.SendTask, sent: Sent, model: _Model, *, evaluate: bool) -> Prepared:
        """Header of the tasks with this model, until another is published."""
        task = translate.to_task(
            action,
            learning_rate=self.learning_rate,
            signature=self.welcome.signature,
            payload_bytes=model.payload_bytes,
            evaluate=evaluate,
            run_id=self.welcome.run_id,
            checksum=model.checksum,
            encoding=self.negotiation.models.name if sent[1] else None,
            accepted_task=None if self.accepted_task is None else 0,  # each header has its own
        )
        prepared = self._tasks[sent, evaluate] = Prepared(task)
        return prepared

    def on_message_from(self, client_id: int) -> None:
        """A message arrived from a client: it may be sent a model again."""
        self._awaiting_reply.discard(client_id)

    def take_deferred_task(self, client_id: int) -> actions.SendTask | None:
        """The deferred task of a client that may be sent a model again; None without one."""
        return None if client_id in self._awaiting_reply else self._deferred.pop(client_id, None)

    def payload_bytes(self, client_id: int) -> int:
        """Size of the models that a client is sent."""
        is_encoded = self.negotiation.takes_models(client_id)
        return (self.negotiation.models if is_encoded else self.negotiation.updates[0]).payload_bytes

    def bytes_with_task(self, client_id: int) -> int:
        """Payload bytes that are sent with a client's task."""
        size_bytes = self.payload_bytes(client_id)
        return size_bytes if size_bytes <= self.downloads.chunk_bytes else 0

    def acknowledge(self, action: actions.Acknowledge) -> None:
        """Send the verdict on an update to its client, if it can be reached."""
        if action.outcome is not actions.Outcome.ACCEPTED:
            self.send_to_client(action.client_id, translate.to_ack(action))
            return
        route = self.sessions.route_of(action.client_id)
        if route is not None:
            self._deliver(route, ACCEPTED.header(task_id=action.task_id))

    def send_to_client(self, client_id: int, message: Message, frames: Sequence[memoryview] = ()) -> bool:
        """Send a message to a client, if it can be reached."""
        route = self.sessions.route_of(client_id)
        return route is not None and self.send(route, message, self.transport.wrap(frames) if frames else ())

    def send(self, route: bytes, message: Message, frames: Sequence[Any] = ()) -> bool:
        """Send to a connection. When it is gone, or not read from, its client must say hello to be sent more."""
        return self._deliver(route, codec.encode(message), frames)

    def send_to_all(self, message: Message) -> None:
        """Send a message to every client that can be reached."""
        for route in self.sessions.routes():
            self.send(route, message)

    def _deliver(self, route: bytes, header: bytes, frames: Sequence[Any] = ()) -> bool:
        delivery = self.transport.send(route, header, frames)
        if delivery is Delivery.SENT:
            return True
        client_id = self.sessions.client_of(route)
        if client_id is not None and delivery is Delivery.GONE:
            self.sessions.cut_off(client_id)
        elif client_id is not None:
            self.sessions.forget(client_id)
        return False
