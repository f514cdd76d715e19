"""A scripted client, byte by byte if necessary."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import zmq

from support.running import PATIENCE_S
from unstale_proto import codec
from unstale_proto.messages import (
    Ack,
    Bye,
    Heartbeat,
    Hello,
    Message,
    PartitionPlan,
    Stop,
    Task,
    TensorSpec,
    TrainingPlan,
    Update,
    Welcome,
)

M = TypeVar("M", bound=Message)


RUN = "1" * 32


def update(task_id: int = 1) -> Update:
    """A delta of the model of `welcome`, for a task on version 0."""
    return Update(
        task_id=task_id,
        base_version=0,
        kind="delta",
        num_examples=3,
        steps=1,
        loss=0.5,
        learning_rate=0.1,
        signature="0" * 64,
        payload_bytes=8,
    )


def welcome(
    run_id: str = RUN, *, client_id: int = 0, clients: int = 20, extra: bool | None = None, buffers: int = 0
) -> Welcome:
    """The welcome of a server of a run with a model of two parameters. buffers: numbers of each of two, 0 for none."""
    return Welcome(
        client_id=client_id,
        run_id=run_id,
        clients=clients,
        seed=0,
        version=0,
        model="logreg",
        data="digits",
        partition=PartitionPlan(name="iid"),
        training=TrainingPlan(name="sgd", batch_size=8, steps=1),
        tensors=(TensorSpec(name="w", shape=(2,), dtype="float32"),),
        buffers=tuple(TensorSpec(name=name, shape=(buffers,), dtype="float32") for name in ("m", "v") if buffers)
        or None,
        signature="0" * 64,
        heartbeat_s=2.0,
        lease_s=10.0,
        extra=extra,
    )


class RawClient:
    """A DEALER without the logic of the client. The end of its context closes it without a goodbye.

    session: 16 bytes in hex; made from the client id unless given. receive_queue: bound of its unread messages.
    """

    def __init__(self, address: str, client_id: int = 0, session: str | None = None, receive_queue: int = 1000) -> None:
        self.client_id = client_id
        self.session = session or f"{client_id:032x}"
        self.address = address
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, receive_queue)
        self.socket.connect(address)

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, message: Message, frames: Sequence[bytes | memoryview] = ()) -> None:
        self.say_bytes(codec.encode(message), *frames)

    def say_bytes(self, *frames: bytes | memoryview) -> None:
        self.socket.send_multipart(frames)

    def hear_any(self) -> tuple[Message, list[bytes]]:
        """The next message, with its payload frames."""
        assert self.socket.poll(PATIENCE_S * 1000), f"client {self.client_id} hears nothing"
        header, *frames = self.socket.recv_multipart()
        return codec.decode(header), frames

    def hear(self, kind: type[M]) -> M:
        """The next message, which must be of this type."""
        message, _ = self.hear_any()
        assert isinstance(message, kind), message
        return message

    def hears_nothing_before(self, number: int) -> None:
        """The next message answers a heartbeat: earlier messages had no answer."""
        self.say(Heartbeat(number=number, version=0))
        assert self.hear(Heartbeat).number == number

    def say_hello(self, holding: tuple[int, ...] = ()) -> None:
        self.say(Hello(client_id=self.client_id, session=self.session, holding=holding))

    def join(self, holding: tuple[int, ...] = ()) -> Welcome:
        self.say_hello(holding)
        return self.hear(Welcome)

    def task(self) -> tuple[Task, "np.ndarray[Any, Any]"]:
        """The next message, which must be a task, with its model [d] float32."""
        message, frames = self.hear_any()
        assert isinstance(message, Task), message
        return message, np.frombuffer(b"".join(frames), dtype="<f4")

    def answer(self, task: Task, vector: "np.ndarray[Any, Any]", **changes: Any) -> Ack:
        """Send an update of a task, and receive the verdict. vector: [d]. changes: fields of the update."""
        self.say(update_of(task, **changes), [vector.astype("<f4").tobytes()])
        return self.hear(Ack)

    def leave_after_stop(self) -> Stop:
        """The next message, which must be `stop`; the client says goodbye, and the server stops waiting."""
        stop = self.hear(Stop)
        self.say(Bye())
        return stop


def update_of(task: Task, **changes: Any) -> Update:
    """A valid header for an update of a task, except for the changes."""
    fields: dict[str, Any] = {
        "task_id": task.task_id,
        "base_version": task.version,
        "kind": "gradient",
        "num_examples": 8,
        "steps": 1,
        "loss": 1.0,
        "learning_rate": task.learning_rate,
        "signature": task.signature,
        "payload_bytes": task.payload_bytes,
    }
    return Update(**{**fields, **changes})
