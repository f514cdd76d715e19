"""Records of the journal, one named tuple for each table; `row_codec` converts them to columns. No I/O.

A frozen dataclass takes several times as long to create. `at_s`: seconds on the run's clock, also after a restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unstale.compensators import Compensated, MeasuredError
from unstale.learner.row_checks import Norms
from unstale.learner.updates import StagedUpdate


class Location(NamedTuple):
    """Location of an update's row: number of the segment, offset and size in its file, and xxh3_64 of the bytes."""

    segment: int
    offset: int
    size_bytes: int
    checksum: int


class EventRow(NamedTuple):
    """An event that the coordinator handled; an update's arrival is an `UpdateRow`."""

    seq: int  # number of the event, from 1
    at_s: float
    kind: str  # type of the event
    fields: Mapping[str, Any]  # its other fields, as JSON values


class TaskRow(NamedTuple):
    """A task. number: count of earlier tasks of its client."""

    task_id: int
    client_id: int
    number: int
    version: int
    at_s: float


class UpdateRow(NamedTuple):
    """An update and the verdict at its arrival."""

    seq: int  # number of the event
    at_s: float
    staged: StagedUpdate
    outcome: str
    reason: str | None  # None exactly for an accepted update; others have no handle and location
    norms: Norms | None = None  # Euclidean, of the update's vectors; None if not computed
    handle: int | None = None  # number of the row in staging
    location: Location | None = None


class MemberRow(NamedTuple):
    """An update of an applied round. staleness: in rounds. weight: its factor in the policy's step."""

    handle: int
    staleness: int
    weight: float


class CompensationRow(NamedTuple):
    """Compensation of a round, as in `learner.Compensation`. is_kept: whether its estimates are stored in a file."""

    updates: tuple[Compensated, ...]
    errors: tuple[MeasuredError, ...]
    fallbacks: dict[str, int]
    is_kept: bool


class RoundRow(NamedTuple):
    """An applied round."""

    version: int  # result of the round
    closed_s: float  # when the coordinator closed it
    applied_s: float
    wait_s: float  # duration of the open round
    compensate_s: float  # duration of the compensation
    aggregate_s: float  # duration of the step
    learning_rate: float
    rate_factor: float  # the policy's factor of the learning rate
    overflowed: bool  # the step exceeded float32 and was not applied
    digest: str  # SHA-256 of the version, hex
    compensation: CompensationRow | None = None  # None without a compensator
    members: tuple[MemberRow, ...] = ()  # in order of arrival


class EvaluationRow(NamedTuple):
    """Evaluation of a version. accuracy: in [0, 1]. loss: nats. class_accuracy: None for a class without examples."""

    version: int
    at_s: float
    accuracy: float
    loss: float
    class_accuracy: tuple[float | None, ...]
    evaluate_s: float


class OwnEvaluationRow(NamedTuple):
    """Evaluation by a client on its own test examples. seq: of the accepted update it came with. loss: nats."""

    seq: int
    client_id: int
    version: int
    accuracy: float
    loss: float
    examples: int


class CheckpointRow(NamedTuple):
    """A complete checkpoint. seq: number of the last event whose effect it contains."""

    version: int
    seq: int
    file: str
    size_bytes: int
    at_s: float


@dataclass(slots=True)
class Batch:
    """Records for one transaction. synced: all events up to this seq are durable; None if unchanged."""

    events: list[EventRow] = field(default_factory=list)  # sorted by seq, as updates
    tasks: list[TaskRow] = field(default_factory=list)
    updates: list[UpdateRow] = field(default_factory=list)
    rounds: list[RoundRow] = field(default_factory=list)
    evaluations: list[EvaluationRow] = field(default_factory=list)
    own_evaluations: list[OwnEvaluationRow] = field(default_factory=list)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    synced: int | None = None

    @property
    def last_seq(self) -> int | None:
        """Number of the last event in the batch, None without events."""
        last = self.updates[-1].seq if self.updates else None
        if self.events and (last is None or self.events[-1].seq > last):
            last = self.events[-1].seq
        return last

    def __bool__(self) -> bool:
        # An own evaluation accompanies its update. `synced` waits for the next record: it alone needs no transaction.
        return any((self.events, self.tasks, self.updates, self.rounds, self.evaluations, self.checkpoints))
