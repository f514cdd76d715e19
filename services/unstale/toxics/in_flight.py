"""One message on its way: what a toxic is given, and what it gives back."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, Self, get_args

MessageType = Literal[
    "hello", "welcome", "task", "update", "ack", "heartbeat", "bye", "stop", "error", "chunk", "credit"
]

MESSAGE_TYPES: tuple[MessageType, ...] = get_args(MessageType)
"""Of the wire contract. A message's place here keys its draws: new types are added at the end."""


class Direction(StrEnum):
    """Which way a message goes."""

    UP = "up"  # client to server
    DOWN = "down"  # server to client


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightMessage:
    """A message in flight. Seconds count from the start of the scenario.

    number: the task's id for a task and an update; otherwise how many messages of this type the client sent, or was
    sent, before. attempt: how many times this very message was sent before. copy: 0 for the message itself, 1, 2, ...
    for what `duplicate` made of it. These key the draws. version: of the model that a task carries, None for other
    types. size_bytes: all its frames. header_bytes: the first of them, 0 where nobody will ask. began_s: when the task
    that it answers was sent by the server; for other messages, and where that is not known, sent_s. sent_s: when it
    entered. due_s: when it comes out.

    occupies_s: how long it keeps the line to itself, which a line grants to one message after the other. in_order:
    False when it may pass those before it, and be passed. damage: bits to flip, counted from the first bit of the
    header through all frames. declined: the client cannot take part in this round, and the task goes back. cuts: the
    connection breaks here, and all that is on it is lost; for down_s the client cannot connect again.
    """

    client_id: int
    direction: Direction
    type: MessageType
    number: int
    sent_s: float
    due_s: float
    began_s: float
    size_bytes: int
    header_bytes: int = 0
    version: int | None = None
    attempt: int = 0
    copy: int = 0
    occupies_s: float = 0.0
    in_order: bool = True
    damage: tuple[int, ...] = ()
    declined: bool = False
    cuts: bool = False
    down_s: float = 0.0

    def later(self, seconds: float) -> Self:
        """The same message, coming out so much later."""
        return replace(self, due_s=self.due_s + seconds)
