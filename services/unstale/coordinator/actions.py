"""Actions of the coordinator, which the shell executes in order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from unstale.coordinator.events import Event, value


class Outcome(StrEnum):
    """Outcome of an update."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"


class Reason(StrEnum):
    """Why the coordinator rejects an update. The wire contract's list of reasons holds each of these."""

    UNKNOWN_TASK = "unknown-task"  # never given to this client
    EXPIRED_TASK = "expired-task"  # lease expired, round closed, or newer task given
    UNKNOWN_VERSION = "unknown-version"  # not the version of the task
    RUN_FINISHED = "run-finished"


@value
class SendTask:
    """Send a task to a client."""

    client_id: int
    task_id: int  # > 0, unique in the run, ascending for each client
    version: int  # to train from: the current one; older for a stale client (`CoordinatorSettings.stale_rounds`)
    number: int  # number of earlier tasks of this client; with the client id it keys the random draws of the task


@value
class Acknowledge:
    """Acknowledge an update."""

    client_id: int
    task_id: int
    outcome: Outcome
    first_outcome: Outcome  # for a duplicate, the outcome of the first copy; otherwise equal to `outcome`
    reason: str | None = None  # None exactly when `first_outcome` is `accepted`


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardUpdate:
    """Free the update that is staged under this handle."""

    handle: int


@value
class Contribution:
    """An accepted update in a round. staleness: version that the round is applied to - base version; 0 is fresh."""

    client_id: int
    task_id: int
    handle: int
    base_version: int
    staleness: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRound:
    """Apply these updates, in order of arrival, to `version`; perhaps none. `RoundApplied` comes before the next."""

    version: int
    contributions: tuple[Contribution, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetVersion:
    """Delete a version that no task and no update needs any more."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Report `TimerFired` at `due_s`, which replaces an earlier time of this timer."""

    timer: str
    due_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    """Do not report this timer; does nothing if it is not set."""

    timer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Evaluate the current version on the test set."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Stop every client: the run is over. Only acknowledgements follow."""

    version: int
    reason: str  # `finished`, `reached` (the value of a metric) or `shutdown`


Action = (
    SendTask | Acknowledge | DiscardUpdate | ApplyRound | ForgetVersion | SetTimer | CancelTimer | Evaluate | Finish
)

Observer = Callable[[Event, Sequence[Action]], None]
"""Receives every event and the resulting actions."""
