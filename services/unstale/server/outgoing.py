"""What goes out: messages to connections and clients, and the current model to those who are given a task.

The model is wrapped into frames once per version, and every message that carries it refers to them. A client that was
sent a model is sent no other until something was heard of it, so that one that reads slowly, or not at all, holds one
model in our memory and not one a round.
"""

from collections.abc import Callable, Sequence

import zmq

from unstale import translate
from unstale.coordinator import actions
from unstale.server.sessions import Sessions
from unstale_proto import codec
from unstale_proto.messages import Message

FRAMES_KEPT = 64 * 1024  # bytes; smaller frames are copied into the message, larger are referred to


class Outgoing:
    """The exchange's thread only. frames: what is sent of version 0. learning_rate: eta_l of its tasks. wanted: whether
    the task of a client, with a version, asks for an evaluation."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        sessions: Sessions,
        *,
        frames: Sequence[memoryview],
        signature: str,
        learning_rate: float,
        wanted: Callable[[int, int], bool],
    ) -> None:
        self._socket = socket
        self._sessions = sessions
        self._signature = signature
        self._learning_rate = learning_rate
        self._wanted = wanted
        self._version = 0
        self._frames = _wrapped(frames)
        self.payload_bytes = sum(map(len, frames))
        self._unheard: set[int] = set()  # clients that were sent a model and have not been heard of since
        self._owed: dict[int, actions.SendTask] = {}

    def publish(self, version: int, frames: Sequence[memoryview], learning_rate: float) -> None:
        """From here on tasks carry this version."""
        self._learning_rate = learning_rate
        self._version = version
        self._frames = _wrapped(frames)

    def give(self, action: actions.SendTask) -> bool:
        """Send a task with the current model, now or when its client is next heard of. Whether it went now."""
        assert action.version == self._version, (
            f"{action}, and the model at hand is of version {self._version}"
        )
        self._owed.pop(action.client_id, None)
        route = self._sessions.route_of(action.client_id)
        if route is None:
            return False  # gone since: its lease runs out, and its task with it
        if action.client_id in self._unheard:
            self._owed[action.client_id] = action
            return False
        self._unheard.add(action.client_id)
        task = translate.to_task(
            action,
            learning_rate=self._learning_rate,
            signature=self._signature,
            payload_bytes=self.payload_bytes,
            evaluate=self._wanted(action.client_id, action.version),
        )
        return self.send(route, task, self._frames)

    def heard_of(self, client_id: int) -> actions.SendTask | None:
        """Something came from a client: the task that it is owed, to be given now if it is still awaited."""
        self._unheard.discard(client_id)
        return self._owed.pop(client_id, None)

    def tell(self, client_id: int, message: Message) -> bool:
        """Send a message to a client, if it can be reached."""
        route = self._sessions.route_of(client_id)
        return route is not None and self.send(route, message)

    def send(self, route: bytes, message: Message, frames: Sequence[zmq.Frame] = ()) -> bool:
        """Send to a connection. When it is gone, or not read from, its client must say hello to be sent more."""
        header = codec.encode(message)
        try:
            self._socket.send(route, zmq.SNDMORE | zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            client_id = self._sessions.client_of(route)
            if client_id is not None and error.errno == zmq.EHOSTUNREACH:
                self._sessions.cut_off(client_id)
            elif client_id is not None:
                self._sessions.forget(client_id)
            return False
        self._socket.send(header, zmq.SNDMORE if frames else 0)
        for position, frame in enumerate(frames, start=1):
            self._socket.send(frame, zmq.SNDMORE if position < len(frames) else 0, copy=False)
        return True


def _wrapped(frames: Sequence[memoryview]) -> list[zmq.Frame]:
    return [zmq.Frame(frame, copy=len(frame) < FRAMES_KEPT) for frame in frames]
