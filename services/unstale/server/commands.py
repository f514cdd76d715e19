"""Commands to the compute thread, and their results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unstale.learner.learner import RoundResult
from unstale.learner.updates import Round, RoundUpdate
from unstale.training.measured import Measured
from unstale_client.disk import NoRoomError


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyCommand:
    """Apply a round to these rows, and release their memory."""

    round: Round
    updates: tuple[RoundUpdate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecomputeCommand:
    """Begin work on a stale update before its round closes."""

    row_D: Tensor  # [D] float32, in host memory, unchanged until its round is released
    update: RoundUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateCommand:
    """Evaluate this version, the current one."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetCommand:
    """Forget this version."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommand:
    """Write the current version to disk, with all that continues it."""

    version: int
    seq: int
    coordinator: Mapping[str, Any]  # its state, as of the record `seq`
    admission: Mapping[str, Any]  # likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A round was applied."""

    result: RoundResult
    frames: list[memoryview]  # float32 payload of the version; shares its memory
    aggregate_s: float
    device_memory_bytes: int
    compensate_s: float = 0.0  # time of the compensation, before aggregate_s
    digest: str = ""  # SHA-256 in hex, empty where it is not needed
    encoded: Sequence[memoryview] = ()  # payload in the encoding of the run, empty where that is float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A version was evaluated."""

    version: int
    evaluation: Measured
    evaluate_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint is complete on disk. file: its name."""

    version: int
    seq: int
    file: str
    size_bytes: int
    checkpoint_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSaved:
    """There is no room for a checkpoint. error: about its file."""

    version: int
    error: NoRoomError


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """The compute thread ended with this exception."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class StopNow:
    """The operator stops the run."""


@dataclass(frozen=True, slots=True)
class ConnectionCut:
    """A connection was cut for a message that no correct client sends. route: its routing id."""

    route: bytes


Command = ApplyCommand | PrecomputeCommand | EvaluateCommand | ForgetCommand | CheckpointCommand
ComputeResult = Applied | Evaluated | Saved | NotSaved | Crashed
QueueItem = ComputeResult | StopNow | ConnectionCut
