"""A message in flight: the argument and the result of a toxic."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, Self, get_args

MessageType = Literal[
    "hello", "welcome", "task", "update", "ack", "heartbeat", "bye", "stop", "error", "chunk", "credit"
]

MESSAGE_TYPES: tuple[MessageType, ...] = get_args(MessageType)
"""Message types of the wire contract. Add new types at the end: the index seeds random draws (`ToxicRng`)."""


class Direction(StrEnum):
    """Direction of a message."""

    UP = "up"  # client to server
    DOWN = "down"  # server to client


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightMessage:
    """A message in flight. Times are seconds from the start of the scenario.

    The record is flat, so that toxics, also of plug-ins, replace a field in one call: `replace(flight, cuts=True)`.
    """

    # Identity, which seeds the random draws.
    client_id: int
    direction: Direction
    type: MessageType
    number: int  # of a task or an update: id of the task; of others: earlier messages of this client and type
    attempt: int = 0  # earlier transmissions of this message
    copy: int = 0  # 0 for the original, 1, 2, ... for its copies

    # Content.
    size_bytes: int
    header_bytes: int = 0  # size of the first frame; 0 if no toxic needs it
    version: int | None = None  # of the model in a task
    began_s: float  # of an update: when the server first sent its task; otherwise, or if unknown, `sent_s`
    sent_s: float

    # Effects of toxics.
    due_s: float  # when the receiver gets it
    occupies_s: float = 0.0  # transmission time; the channel transmits one such message at a time
    in_order: bool = True  # False if the order with other messages may change
    damage: tuple[int, ...] = ()  # indexes of bits to flip, from the first bit of the header through all frames
    declined: bool = False  # the client cannot take part in this round, and returns the task
    cuts: bool = False  # the connection breaks, and its other messages are lost
    down_s: float = 0.0  # time for which the client cannot connect again after `cuts`

    def later(self, seconds: float) -> Self:
        """Return the same message, delayed by `seconds`."""
        return replace(self, due_s=self.due_s + seconds)
