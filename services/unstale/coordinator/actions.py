"""What the coordinator wants done. Orders, in the imperative, for the shell to carry out in this order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from unstale.coordinator.events import Event
from unstale.coordinator.values import value


class Outcome(StrEnum):
    """What became of an update."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"


class Reason(StrEnum):
    """Why the coordinator rejects an update. The wire contract's list of reasons holds each of these."""

    UNKNOWN_TASK = "unknown-task"  # never given to this client
    EXPIRED_TASK = "expired-task"  # given, and taken back since: lease run out, round closed, newer task
    UNKNOWN_VERSION = "unknown-version"  # not the version that the task was given with, or never issued
    RUN_FINISHED = "run-finished"


@value
class SendTask:
    """Give a client a model to work on.

    task_id: > 0, unique in the run, rising for each client. version: the current one, or for a stale client
    (`CoordinatorSettings.stale_rounds`) the one so many rounds before it. number: how many tasks this client was given
    before, 0 for its first; with the client id it keys the draws that belong to the task.
    """

    client_id: int
    task_id: int
    version: int
    number: int


@value
class Acknowledge:
    """Answer an update. reason: None exactly when the first outcome was `accepted`.

    first_outcome: for a duplicate, what the first copy was told; otherwise equal to `outcome`.
    """

    client_id: int
    task_id: int
    outcome: Outcome
    first_outcome: Outcome
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardUpdate:
    """Nothing will be made of what was staged under this handle: free it."""

    handle: int


@value
class Contribution:
    """One accepted update in a round. staleness: version being aggregated into - base version, 0 is fresh."""

    client_id: int
    task_id: int
    handle: int
    base_version: int
    staleness: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRound:
    """Make `version` + 1 out of `version` and these updates, in order of arrival; perhaps of none.

    Answered by `RoundApplied`. One round is in the making at a time.
    """

    version: int
    contributions: tuple[Contribution, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetVersion:
    """No task and no update refers to this version any more, and no task will be given on it."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Report `TimerFired(timer)` at due_s. Setting a timer again moves it."""

    timer: str
    due_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    """Do not report this timer. Cancelling one that is not set does nothing."""

    timer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Measure this version, the current one, on the test set."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The run is over: tell every client to stop. Nothing but acknowledgements follows."""

    version: int
    reason: str


Action = (
    SendTask
    | Acknowledge
    | DiscardUpdate
    | ApplyRound
    | ForgetVersion
    | SetTimer
    | CancelTimer
    | Evaluate
    | Finish
)

Observer = Callable[[Event, Sequence[Action]], None]
"""Told of every event and what came of it."""
