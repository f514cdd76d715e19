"""Commands to the compute thread, and the items that other threads post to the server's loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unstale.gateway.transport import Delivery
from unstale.learner.learner import RoundResult
from unstale.learner.updates import Round, RoundUpdate
from unstale.training.measured import Measured
from unstale_client.disk import NoRoomError


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyCommand:
    """Apply a round to the model, and release the memory of its rows."""

    round: Round
    updates: tuple[RoundUpdate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecomputeCommand:
    """Start to compensate a stale update before its round closes. Has no result."""

    row_D: Tensor  # [D] float32, in host memory, unchanged until its round is released
    update: RoundUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateCommand:
    """Evaluate the current version."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetCommand:
    """Delete a version that no task and no update needs. Has no result."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommand:
    """Write a checkpoint of the current version."""

    version: int
    seq: int  # last journal record that the states below contain
    coordinator: Mapping[str, Any]  # state of the coordinator
    admission: Mapping[str, Any]  # state of the admission


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A round was applied."""

    result: RoundResult
    frames: list[memoryview]  # float32 payload of the version; shares its memory
    aggregate_s: float
    device_memory_bytes: int
    compensate_s: float = 0.0  # time of the compensation, before aggregate_s
    digest: str = ""  # SHA-256 in hex, empty if the run is not stored
    encoded: Sequence[memoryview] = ()  # payload in the encoding of the run, empty if that is float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A version was evaluated."""

    version: int
    evaluation: Measured
    evaluate_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint is complete on disk. file: name of the file."""

    version: int
    seq: int
    file: str
    size_bytes: int
    checkpoint_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSaved:
    """A checkpoint was skipped because the disk is full."""

    version: int
    error: NoRoomError


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """The compute thread ended with an exception."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class StopNow:
    """The operator requested the end of the run."""


@dataclass(frozen=True, slots=True)
class ConnectionCut:
    """A connection was cut for a message that no correct client sends. route: its routing id."""

    route: bytes


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """A message could not be sent to a connection after all. route: its routing id."""

    route: bytes
    delivery: Delivery


Command = ApplyCommand | PrecomputeCommand | EvaluateCommand | ForgetCommand | CheckpointCommand
ComputeResult = Applied | Evaluated | Saved | NotSaved | Crashed
QueueItem = ComputeResult | StopNow | ConnectionCut | ConnectionLost
