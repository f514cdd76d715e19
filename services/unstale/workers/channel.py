"""Frames between a process and its worker process: a kind, the number of a task, and bytes. Nothing is pickled."""

import struct
from enum import IntEnum
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

Pipe: TypeAlias = "Connection[Any, Any]"

_HEAD = struct.Struct(">Bq")


class Kind(IntEnum):
    """To the worker: START (its program as JSON), TASK, CANCEL. From it: READY (the number is its capacity), REFUSED
    (why it cannot start), PROGRESS (a share of a task as JSON), DONE (a result), LOST (why a task has none).
    """

    START = 1
    TASK = 2
    CANCEL = 3
    READY = 4
    REFUSED = 5
    PROGRESS = 6
    DONE = 7
    LOST = 8


Frame: TypeAlias = tuple[Kind, int, bytes]


def send(pipe: Pipe, kind: Kind, number: int = 0, content: bytes = b"") -> None:
    """Raises OSError when the other process has ended."""
    pipe.send_bytes(_HEAD.pack(kind, number) + content)


def receive(pipe: Pipe) -> Frame:
    """The next frame. Raises EOFError or OSError when the other process has ended."""
    frame = pipe.recv_bytes()
    kind, number = _HEAD.unpack_from(frame)
    return Kind(kind), number, frame[_HEAD.size :]
