"""A message in flight: the argument and the result of a toxic."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, Self, get_args

MessageType = Literal[
    "hello", "welcome", "task", "update", "ack", "heartbeat", "bye", "stop", "error", "chunk", "credit"
]

MESSAGE_TYPES: tuple[MessageType, ...] = get_args(MessageType)
"""Types of the wire contract. The index keys the draws of a message: new types are added at the end."""


class Direction(StrEnum):
    """Direction of a message."""

    UP = "up"  # client to server
    DOWN = "down"  # server to client


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightMessage:
    """A message in flight. Times are seconds from the start of the scenario.

    The fields are in groups, but the record is flat: toxics, plug-ins included, replace one or two fields, and with
    nested records `replace(flight, cuts=True)` would be `replace(flight, effects=replace(flight.effects, cuts=True))`.
    """

    # Identity, which keys the draws. number: the task's id for a task and an update, otherwise the count of earlier
    # messages of this type of the client. attempt: count of earlier sends of this message. copy: 1, 2, ... for copies.
    client_id: int
    direction: Direction
    type: MessageType
    number: int
    attempt: int = 0
    copy: int = 0

    # Content. header_bytes: of the first frame, 0 if unused. version: of the model of a task. began_s: when the server
    # sent the task that it answers; sent_s for other messages, or if unknown.
    size_bytes: int
    header_bytes: int = 0
    version: int | None = None
    began_s: float
    sent_s: float

    # Effects of toxics. due_s: when it comes out. occupies_s: how long it occupies the channel alone. in_order: False
    # if it may overtake and be overtaken. damage: bits to flip, counted from the first bit of the header through all
    # frames. declined: the client cannot take part in this round, and returns the task. cuts: the connection breaks
    # here, and its other messages are lost; for down_s the client cannot connect again.
    due_s: float
    occupies_s: float = 0.0
    in_order: bool = True
    damage: tuple[int, ...] = ()
    declined: bool = False
    cuts: bool = False
    down_s: float = 0.0

    def later(self, seconds: float) -> Self:
        """The same message, delayed by `seconds`."""
        return replace(self, due_s=self.due_s + seconds)
