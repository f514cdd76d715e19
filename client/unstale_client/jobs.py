"""Tasks on their way to the thread that trains, and their results on the way back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path

import numpy as np

from unstale_client.actions import PendingUpdate, Settle
from unstale_client.built_vectors import built
from unstale_client.vectors import FLOAT, Vector
from unstale_proto.encodings import FLOAT32, Encoding
from unstale_proto.errors import Reason
from unstale_proto.messages import Task, Welcome


@dataclass(eq=False, slots=True, weakref_slot=True)
class ReceivedModel:
    """Payload frames of a version, shared by all hosted clients with a task on it."""

    frames: Sequence[memoryview]

    def vector(self, encoding: Encoding, folder: Path | None = None) -> Vector:
        """The vector of a version, [D] float32. A view where the payload is a mapped file of float32, else a new one.

        folder: as of `built_vectors.built`. Raises RemoteContractError.
        """
        numbers = encoding.dimension + encoding.behind
        source = self.frames[0].obj if self.frames else None
        if encoding.name == FLOAT32 and isinstance(source, mmap) and all(each.obj is source for each in self.frames):
            whole = memoryview(source)
            if len(whole) == sum(map(len, self.frames)) == FLOAT.itemsize * numbers:
                return np.frombuffer(whole, FLOAT)
        return built(lambda: (np.frombuffer(piece, FLOAT) for piece in encoding.decode(self.frames)), numbers, folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A task of a hosted client. wanted: called before the training starts. received_s: arrival time of the task."""

    client_id: int
    welcome: Welcome
    task: Task
    model: ReceivedModel
    is_wanted: Callable[[], bool]
    received_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement(Settle):
    """The final outcome of a client's update, which changes the client's state if it was accepted."""

    client_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """An encoded and stored update.

    Attributes:
        duration_s: Simulated time of the task on the client's device.
        computed_s: Real time of the task.
    """

    job: Job
    pending: PendingUpdate
    duration_s: float = 0.0
    computed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A task without an update.

    Attributes:
        message: The cause, for people.
        reason: On the wire.
        is_code_error: Whether code of the user is the cause.
        duration_s: As in `Ready`.
    """

    job: Job
    message: str
    reason: Reason = Reason.NON_FINITE
    is_code_error: bool = False
    duration_s: float = 0.0

    @property
    def is_declined(self) -> bool:
        """Whether the client skips this round."""
        return self.reason is Reason.UNAVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """The error that ended the worker."""

    error: BaseException


Result = Ready | Failed | Crashed
