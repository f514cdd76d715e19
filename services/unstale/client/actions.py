"""Actions that a client session requests, to be executed in order."""

from collections.abc import Sequence
from dataclasses import dataclass

from unstale_proto.messages import Message, Task, Update, Welcome

Payload = Sequence[memoryview]
"""Payload frames, which the session passes on unread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingUpdate:
    """An unacknowledged update; each transmission has the same bytes. number: of its task, in this run."""

    run_id: str
    number: int
    update: Update
    parcel: Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a message. parcel: its payload."""

    message: Message
    parcel: Payload = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Train for a task; answered by `trained` or `failed`. parcel: the encoded model."""

    welcome: Welcome
    task: Task
    parcel: Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """The final outcome of an update. accepted: False too if it will never be sent. number: of its task."""

    run_id: str
    number: int
    accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Log a warning. The client continues."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """The client has ended. reason: `finished`, `failed`, `superseded` or `refused`. message: for people."""

    reason: str
    message: str


Action = Send | Train | Settle | Warn | Retire
