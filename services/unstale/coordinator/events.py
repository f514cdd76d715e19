"""Events for the coordinator.

`at_s`: seconds on the shell's clock (monotonic or virtual), from 0, never decreasing. `client_id`: 0 <= id < `clients`.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

Value = TypeVar("Value")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def value(cls: type[Value]) -> type[Value]:
    """A dataclass for values that are created for every update: frozen for the type checker alone, and hashable.

    `frozen=True` writes each field through `object.__setattr__`, which takes three times as long.
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientJoined:
    """A client sent hello, for the first time or again."""

    client_id: int
    at_s: float
    holding: tuple[int, ...] = ()
    """Ids of tasks that it has received and that are not acknowledged. Another open task was lost, and is replaced."""
    same_connection: bool = False
    """It has sent hello on this connection before: messages to it are still under way, so its task stays open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLeft:
    """A client said goodbye."""

    client_id: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived:
    """A client is alive, or a long transfer to or from it makes progress. Renews its lease, as its other events do."""

    client_id: int
    at_s: float


@value
class UpdateArrived:
    """An update arrived."""

    client_id: int
    task_id: int
    base_version: int  # version that the update was computed from, according to the client
    handle: int  # the shell's number of the staged tensor; -1 when nothing was staged
    at_s: float
    defect: str | None = None  # why the payload cannot be used (a reason of the wire contract), or None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvent:
    """An event of one task that brings no update."""

    client_id: int
    task_id: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed(TaskEvent):
    """A client failed to compute the update of its task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRaised(TaskEvent):
    """Code of a client's own user raised in its task, or did not end in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDeclined(TaskEvent):
    """A client is not available for its task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLost(TaskEvent):
    """A task never reached its client, and is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExpired(TaskEvent):
    """A client did not answer its task in time, or repeatedly did not receive it. It sits out some rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """A timer is due. A replaced due time is not reported."""

    timer: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundApplied:
    """The learner applied the last round, which made `version`."""

    version: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The operator ends the run."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReached:
    """A metric has reached the value that ends the run."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The shell resumes after a restart. Clients have a whole lease to reconnect; timers and the round are gone."""

    at_s: float


Event = (
    ClientJoined
    | ClientLeft
    | HeartbeatReceived
    | UpdateArrived
    | TaskFailed
    | TaskRaised
    | TaskDeclined
    | TaskLost
    | TaskExpired
    | TimerFired
    | RoundApplied
    | StopRequested
    | TargetReached
    | Resumed
)
