"""What the coordinator is told. Facts, in the past tense, each with the time at which it became one.

`at_s` is seconds on the shell's own clock (monotonic, or virtual), from 0, and never goes back. `client_id` is at
least 0 and below `clients`.
"""

from dataclasses import dataclass

from unstale.coordinator.values import value


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientJoined:
    """A client said hello: for the first time, after it was lost, on a new connection, or again on its own.

    holding: ids of the tasks that it has received and not yet had an acknowledgement for. A task that it was
    given and does not hold was lost on the way, and another takes its place. same_connection: it was said
    again on the connection that the client has, which keeps its order: what was sent to it is still under
    way, so its task stays open, held or not.
    """

    client_id: int
    at_s: float
    holding: tuple[int, ...] = ()
    same_connection: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLeft:
    """A client said goodbye and works no more."""

    client_id: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived:
    """A client is alive: renews its lease and nothing else. Every other event of a client renews it too.

    A shell may report it without a heartbeat on the wire: while the bytes of a long transfer to or from a
    client move, the client is there.
    """

    client_id: int
    at_s: float


@value
class UpdateArrived:
    """An update has come in and lies staged under `handle`.

    handle: the shell's name for the staged tensor, which is only passed on; -1 when nothing was staged.
    base_version: the version that the update says it was computed from.
    defect: why the payload itself cannot be used (the wire contract's reason), or None.
    """

    client_id: int
    task_id: int
    base_version: int
    handle: int
    at_s: float
    defect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed:
    """A client could not make an update of its task (its training diverged, say) and gives the task back."""

    client_id: int
    task_id: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDeclined:
    """A client cannot take part in this round (it is not available) and gives the task back, unharmed."""

    client_id: int
    task_id: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLost:
    """A task that was sent to a client is known never to have reached it, and another takes its place."""

    client_id: int
    task_id: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExpired:
    """A client has not answered its task in time, or says again and again that it did not get it. The shell decides
    when; the task is taken back, and the client sits out some rounds, more each time in a row."""

    client_id: int
    task_id: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """A timer that was set is due. A timer that was set again since then is not reported for its old time."""

    timer: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundApplied:
    """The learner has made `version` out of the round that it was last told to apply."""

    version: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The operator wants the run to end now."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The shell was away and goes on with this state: every connection is gone, no timer is set, and what was being
    made is not. Clients have a whole lease to come back."""

    at_s: float


Event = (
    ClientJoined
    | ClientLeft
    | HeartbeatReceived
    | UpdateArrived
    | TaskFailed
    | TaskDeclined
    | TaskLost
    | TaskExpired
    | TimerFired
    | RoundApplied
    | StopRequested
    | Resumed
)
