"""Actions that a client session requests, to be executed in order."""

from collections.abc import Sequence
from dataclasses import dataclass

from unstale_proto.messages import Message, Task, Update, Welcome

Payload = Sequence[memoryview]
"""Frames of a payload, which the session does not decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingUpdate:
    """An unacknowledged update; each transmission has the same bytes."""

    run_id: str
    number: int  # `Task.number`
    update: Update
    parcel: Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a message with its payload."""

    message: Message
    parcel: Payload = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Train for a task, then call `ClientSession.trained` or `failed`."""

    welcome: Welcome
    task: Task
    parcel: Payload  # the encoded model


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Apply the final outcome of an update to the state of the client."""

    run_id: str
    number: int  # `Task.number`
    accepted: bool  # False if the server rejects the update or the client drops it


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Log a warning. The client continues."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Stop the client."""

    reason: str  # `finished`, `failed`, `superseded` or `refused`
    message: str  # for the user


Action = Send | Train | Settle | Warn | Retire
