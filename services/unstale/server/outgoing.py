"""What goes out: messages to connections and clients, and a model to those who are given a task.

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
from unstale.server.sessions import Sessions
from unstale.server.wire import Delivery, Wire
from unstale_proto import codec, limits
from unstale_proto.messages import Message
from unstale_proto.transfer import checksum


@dataclass(frozen=True, slots=True)
class _Model:
    """What is sent of a version. wrapped: as the wire wants it, with the task; empty when it goes in chunks, and then
    `checksum` is set."""

    frames: Sequence[memoryview]
    wrapped: Sequence[Any]
    checksum: str | None


class Outgoing:
    """The exchange's thread only. frames: what is sent of version 0. learning_rate: eta_l of its tasks. wanted: whether
    the task of a client, with a version, asks for an evaluation. past_versions: how many rounds old a model may be that
    is still given. chunk_bytes: larger models go in chunks."""

    def __init__(
        self,
        wire: Wire,
        sessions: Sessions,
        *,
        frames: Mapping[int, Sequence[memoryview]],
        run_id: str,
        signature: str,
        learning_rate: float,
        wanted: Callable[[int, int], bool],
        past_versions: int = 0,
        chunk_bytes: int = limits.CHUNK_BYTES,
    ) -> None:
        self._wire = wire
        self._sessions = sessions
        self._run_id = run_id
        self._signature = signature
        self._learning_rate = learning_rate
        self._wanted = wanted
        self._past_versions = past_versions
        self.payload_bytes = sum(map(len, frames[max(frames)]))
        self._in_chunks = self.payload_bytes > chunk_bytes
        self._models = {version: self._model(its_frames) for version, its_frames in frames.items()}
        self.announced: Callable[[int, int, int], None] = lambda *_: None  # told of client, task and version
        self._unheard: set[int] = set()  # clients that were sent a model and have not been heard of since
        self._owed: dict[int, actions.SendTask] = {}

    def publish(self, version: int, frames: Sequence[memoryview], learning_rate: float) -> None:
        """From here on tasks may carry this version, and have this learning rate."""
        self._learning_rate = learning_rate
        self._models[version] = self._model(frames)
        self._models.pop(version - self._past_versions - 1, None)

    def _model(self, frames: Sequence[memoryview]) -> _Model:
        if self._in_chunks:
            return _Model(frames, (), checksum(frames))
        return _Model(frames, self._wire.wrap(frames), None)

    def frames_in_chunks(self, version: int) -> Sequence[memoryview] | None:
        """Of a version that tasks may carry now, if models go in chunks; None for others."""
        model = self._models.get(version)
        return None if model is None or not self._in_chunks else model.frames

    def may_carry(self, version: int) -> bool:
        """Whether tasks may carry this version now."""
        return version in self._models

    def give(self, action: actions.SendTask) -> bool:
        """Send a task with the model of its version, now or when its client is next heard of. Whether it went now."""
        assert action.version in self._models, f"{action}, and at hand are {list(self._models)}"
        self._owed.pop(action.client_id, None)
        route = self._sessions.route_of(action.client_id)
        if route is None:
            return False  # gone since: its lease runs out, and its task with it
        if action.client_id in self._unheard:
            self._owed[action.client_id] = action
            return False
        self._unheard.add(action.client_id)
        model = self._models[action.version]
        task = translate.to_task(
            action,
            learning_rate=self._learning_rate,
            signature=self._signature,
            payload_bytes=self.payload_bytes,
            evaluate=self._wanted(action.client_id, action.version),
            run_id=self._run_id,
            checksum=model.checksum,
        )
        if not self.send(route, task, model.wrapped):
            return False
        if self._in_chunks:
            self.announced(action.client_id, action.task_id, action.version)
        return True

    def heard_of(self, client_id: int) -> None:
        """Something came from a client: it may be sent a model again."""
        self._unheard.discard(client_id)

    def owed_to(self, client_id: int) -> actions.SendTask | None:
        """The task that a client is owed, to be given if it may be sent a model, and if the task is still awaited."""
        return None if client_id in self._unheard else self._owed.pop(client_id, None)

    @property
    def bytes_with_task(self) -> int:
        """Payload that goes with a task."""
        return 0 if self._in_chunks else self.payload_bytes

    def tell(self, client_id: int, message: Message, frames: Sequence[memoryview] = ()) -> bool:
        """Send a message to a client, if it can be reached."""
        route = self._sessions.route_of(client_id)
        return route is not None and self.send(route, message, self._wire.wrap(frames) if frames else ())

    def send(self, route: bytes, message: Message, frames: Sequence[Any] = ()) -> bool:
        """Send to a connection. When it is gone, or not read from, its client must say hello to be sent more.

        frames: as the wire wrapped them.
        """
        delivery = self._wire.send(route, codec.encode(message), frames)
        if delivery is Delivery.SENT:
            return True
        client_id = self._sessions.client_of(route)
        if client_id is not None and delivery is Delivery.GONE:
            self._sessions.cut_off(client_id)
        elif client_id is not None:
            self._sessions.forget(client_id)
        return False
