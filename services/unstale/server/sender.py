"""Sends messages to connections and clients, and models with tasks.

The model is wrapped into frames once per version, and every message that carries it refers to them; one that is too
large for that is announced with the task, and goes in chunks (`Downloads`). A client that was sent a model is sent no
other until something was heard of it, so that one that reads slowly, or not at all, holds one model in our memory and
not one a round.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unstale import translate
from unstale.coordinator import actions
from unstale.server.downloads import Sent
from unstale.server.negotiation import EncodingNegotiation
from unstale.server.sessions import Sessions
from unstale.server.transport import Delivery, Transport
from unstale_proto import codec, limits
from unstale_proto.codec import Prepared
from unstale_proto.messages import Ack, Message, Welcome
from unstale_proto.transfer import checksum


@dataclass(frozen=True, slots=True)
class _Model:
    """What is sent of a version, in one encoding. wrapped: as the wire wants it, with the task; empty when it goes in
    chunks, and then `checksum` is set.
    """

    frames: Sequence[memoryview]
    wrapped: Sequence[Any]
    checksum: str | None


class Sender:
    """Sends messages and models. Protocol thread only.

    Args:
        transport: sends to connections.
        sessions: which connection speaks for which client.
        frames: float32 payload of each version that tasks may carry.
        encoded: the same in the encoding of the run; empty where that is float32.
        negotiation: which of the two a client takes.
        welcome: of the run: its id and the signature of its model.
        learning_rate: eta_l of tasks.
        is_evaluation_wanted: whether the task of a client, at a version, asks for an evaluation.
        past_versions: age in rounds of the oldest model that tasks may carry.
        chunk_bytes: larger models go in chunks.
    """

    def __init__(
        self,
        transport: Transport,
        sessions: Sessions,
        *,
        frames: Mapping[int, Sequence[memoryview]],
        encoded: Mapping[int, Sequence[memoryview]],
        negotiation: EncodingNegotiation,
        welcome: Welcome,
        learning_rate: float,
        is_evaluation_wanted: Callable[[int, int], bool],
        past_versions: int = 0,
        chunk_bytes: int = limits.CHUNK_BYTES,
    ) -> None:
        self._transport = transport
        self._sessions = sessions
        self._run_id, self._signature = welcome.run_id, welcome.signature
        self._learning_rate = learning_rate
        self._is_evaluation_wanted = is_evaluation_wanted
        self._past_versions = past_versions
        self._negotiation = negotiation
        self._chunk_bytes = chunk_bytes
        # By whether the client takes models as the run encodes them.
        self._payload_bytes = (negotiation.updates[0].payload_bytes, negotiation.models.payload_bytes)
        self._bytes_with_task = tuple(size if size <= chunk_bytes else 0 for size in self._payload_bytes)
        self._accepted = Prepared(Ack(task_id=1, outcome="accepted", first_outcome="accepted"))
        self._tasks: dict[tuple[Sent, bool], Prepared] = {}  # by model, and whether it is to be evaluated
        self._models: dict[Sent, _Model] = {}
        for version, its_frames in frames.items():
            self._add(version, its_frames, encoded.get(version, ()))
        self.announced: Callable[[int, int, Sent], None] = lambda *_: None  # receives client, task and model
        self._awaiting_reply: set[int] = set()  # clients that were sent a model and have not been heard of since
        self._deferred: dict[int, actions.SendTask] = {}

    def publish(
        self, version: int, frames: Sequence[memoryview], learning_rate: float, encoded: Sequence[memoryview] = ()
    ) -> None:
        """From now on tasks may carry this version, and have this learning rate."""
        self._learning_rate = learning_rate
        self._tasks.clear()
        self._add(version, frames, encoded)
        for is_encoded in (False, True):
            self._models.pop((version - self._past_versions - 1, is_encoded), None)

    def _add(self, version: int, frames: Sequence[memoryview], encoded: Sequence[memoryview]) -> None:
        self._models[version, False] = self._model(frames)
        if encoded:
            self._models[version, True] = self._model(encoded)

    def _model(self, frames: Sequence[memoryview]) -> _Model:
        if sum(map(len, frames)) > self._chunk_bytes:
            return _Model(frames, (), checksum(frames))
        return _Model(frames, self._transport.wrap(frames), None)

    def frames_in_chunks(self, model: Sent) -> Sequence[memoryview] | None:
        """Frames of a model that tasks may carry now, if it is sent in chunks; None for others."""
        stored = self._models.get(model)
        return None if stored is None or stored.checksum is None else stored.frames

    def may_carry(self, version: int) -> bool:
        """Whether tasks may carry this version now."""
        return (version, False) in self._models

    def sent_to(self, client_id: int, version: int) -> Sent:
        """The model that a client is sent of a version."""
        return version, self._negotiation.takes_models(client_id)

    def send_task(self, action: actions.SendTask) -> bool:
        """Send a task with its model, now or after the next message of its client. Whether it was sent now."""
        client_id = action.client_id
        sent = self.sent_to(client_id, action.version)
        model = self._models.get(sent)
        assert model is not None, f"{action}, and at hand are {list(self._models)}"
        self._deferred.pop(client_id, None)
        route = self._sessions.route_of(client_id)
        if route is None:
            return False  # gone since: its lease runs out, and its task with it
        if client_id in self._awaiting_reply:
            self._deferred[client_id] = action
            return False
        self._awaiting_reply.add(client_id)
        evaluate = self._is_evaluation_wanted(client_id, action.version)
        task = self._tasks.get((sent, evaluate)) or self._prepare(action, sent, model, evaluate=evaluate)
        header = task.header(task_id=action.task_id, number=action.number)
        if not self._deliver(route, header, model.wrapped):
            return False
        if model.checksum is not None:
            self.announced(client_id, action.task_id, sent)
        return True

    def _prepare(self, action: actions.SendTask, sent: Sent, model: _Model, *, evaluate: bool) -> Prepared:
        """Header of the tasks with this model, until another is published."""
        task = translate.to_task(
            action,
            learning_rate=self._learning_rate,
            signature=self._signature,
            payload_bytes=sum(map(len, model.frames)),
            evaluate=evaluate,
            run_id=self._run_id,
            checksum=model.checksum,
            encoding=self._negotiation.models.name if sent[1] else None,
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
        return self._payload_bytes[self._negotiation.takes_models(client_id)]

    def bytes_with_task(self, client_id: int) -> int:
        """Payload bytes that are sent with a client's task."""
        return self._bytes_with_task[self._negotiation.takes_models(client_id)]

    def acknowledge(self, action: actions.Acknowledge) -> None:
        """Send the verdict on an update to its client, if it can be reached."""
        if action.outcome is not actions.Outcome.ACCEPTED:
            self.send_to_client(action.client_id, translate.to_ack(action))
            return
        route = self._sessions.route_of(action.client_id)
        if route is not None:
            self._deliver(route, self._accepted.header(task_id=action.task_id))

    def send_to_client(self, client_id: int, message: Message, frames: Sequence[memoryview] = ()) -> bool:
        """Send a message to a client, if it can be reached."""
        route = self._sessions.route_of(client_id)
        return route is not None and self.send(route, message, self._transport.wrap(frames) if frames else ())

    def send(self, route: bytes, message: Message, frames: Sequence[Any] = ()) -> bool:
        """Send to a connection. When it is gone, or not read from, its client must say hello to be sent more.

        frames: as the wire wrapped them.
        """
        return self._deliver(route, codec.encode(message), frames)

    def send_to_all(self, message: Message) -> None:
        """Send a message to every client that can be reached."""
        for route in self._sessions.routes():
            self.send(route, message)

    def _deliver(self, route: bytes, header: bytes, frames: Sequence[Any] = ()) -> bool:
        delivery = self._transport.send(route, header, frames)
        if delivery is Delivery.SENT:
            return True
        client_id = self._sessions.client_of(route)
        if client_id is not None and delivery is Delivery.GONE:
            self._sessions.cut_off(client_id)
        elif client_id is not None:
            self._sessions.forget(client_id)
        return False
