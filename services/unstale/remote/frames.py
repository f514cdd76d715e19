"""What the process of a run and its courier say to each other: a kind, the number of a group, and bytes."""

import struct
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

Pipe: TypeAlias = "Connection[Any, Any]"

_HEAD = struct.Struct(">Bq")


class Kind(IntEnum):
    """To the courier: START (`Start` as JSON), INVERT (a group), CANCEL. From it: READY, REFUSED (why the cluster
    cannot be used), DONE (what was computed), LOST (why it was not)."""

    START = 1
    INVERT = 2
    CANCEL = 3
    READY = 4
    REFUSED = 5
    DONE = 6
    LOST = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the courier is told first. address: as in `compensator.ray`. description: for workers. cpus, gpus: of each
    task."""

    address: str
    description: str
    cpus: int
    gpus: float


def say(pipe: Pipe, kind: Kind, number: int = 0, content: bytes = b"") -> None:
    """Raises OSError when the other side is gone."""
    pipe.send_bytes(_HEAD.pack(kind, number) + content)


def hear(pipe: Pipe) -> tuple[Kind, int, bytes]:
    """The next frame. Raises EOFError or OSError when the other side is gone."""
    frame = pipe.recv_bytes()
    kind, number = _HEAD.unpack_from(frame)
    return Kind(kind), number, frame[_HEAD.size :]
