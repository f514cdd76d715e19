"""What a session wants done, to be carried out in order."""

from collections.abc import Sequence
from dataclasses import dataclass

from unstale_proto.messages import Message, Task, Update, Welcome

Payload = Sequence[memoryview]
"""Payload frames, which the session keeps and hands on without a look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingUpdate:
    """An update, which is the same to the byte however often it is sent. number: of its task, in this run."""

    run_id: str
    number: int
    update: Update
    parcel: Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a message. parcel: the update's payload belongs to it, when it is one that is kept."""

    message: Message
    parcel: Payload = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Work on a task; answered by `trained` or `failed`. parcel: the model as it came."""

    welcome: Welcome
    task: Task
    parcel: Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """What becomes of the update of a task is known: it was accepted, or it never will be. number: of the task."""

    run_id: str
    number: int
    accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Something that a person may have to look at. The client goes on."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """This client is done. reason: `finished`, `superseded` or `refused`. message: for people."""

    reason: str
    message: str


Action = Send | Train | Settle | Warn | Retire
