"""Records of the journal, one type for each table. Pure.

Named tuples, because a frozen dataclass takes several times as long to create. Their fields are columns of the tables.
`at_s` is run time: seconds on the run's clock, which a restart resumes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from unstale.compensators import Compensated, MeasuredError
from unstale.learner.row_checks import Norms
from unstale.learner.updates import StagedUpdate

NO_METRICS: Mapping[str, float] = MappingProxyType({})


class Location(NamedTuple):
    """Place of a row: segment number, offset and size in that file, and xxh3_64 checksum of the bytes."""

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
    """A task. number: number of earlier tasks of its client."""

    task_id: int
    client_id: int
    number: int
    version: int
    at_s: float


class UpdateRow(NamedTuple):
    """An update and the first verdict on it."""

    seq: int  # number of the event
    at_s: float
    staged: StagedUpdate
    outcome: str
    reason: str | None  # None exactly for an accepted update, which alone has a handle and a place
    norms: Norms | None = None  # Euclidean, of its vectors; None where they were not measured
    handle: int | None = None
    location: Location | None = None


class MemberRow(NamedTuple):
    """A member of an applied round. staleness: rounds. weight: in the step."""

    handle: int
    staleness: int
    weight: float


class CompensationRow(NamedTuple):
    """Compensation of a round, as in `learner.Compensation`. is_kept: whether a file has its estimates."""

    updates: tuple[Compensated, ...]
    errors: tuple[MeasuredError, ...]
    fallbacks: dict[str, int]
    is_kept: bool


class RoundRow(NamedTuple):
    """An applied round."""

    version: int  # that it made
    closed_s: float  # when the coordinator closed it
    applied_s: float
    wait_s: float  # duration of the open round, and below of the compensation and the step
    compensate_s: float
    aggregate_s: float
    learning_rate: float
    rate_factor: float
    overflowed: bool
    digest: str  # SHA-256 of the version, hex
    compensation: CompensationRow | None = None  # None without a compensator
    metrics: Mapping[str, float] = NO_METRICS  # that policy and compensator report of themselves, by name
    members: tuple[MemberRow, ...] = ()  # in order of arrival


class EvaluationRow(NamedTuple):
    """Evaluation of a version. class_accuracy: None for a class without examples."""

    version: int
    at_s: float
    metrics: Mapping[str, float]  # by name
    class_accuracy: tuple[float | None, ...]
    evaluate_s: float


class OwnEvaluationRow(NamedTuple):
    """Evaluation by a client on its own test examples, sent with an accepted update of that seq."""

    seq: int
    client_id: int
    version: int
    metrics: Mapping[str, float]  # by name
    examples: int


class CheckpointRow(NamedTuple):
    """A complete checkpoint. seq: of the last event that it covers."""

    version: int
    seq: int
    file: str
    size_bytes: int
    at_s: float


@dataclass(slots=True)
class Batch:
    """Records of one turn, stored in one transaction. synced: seq up to which all is durable, None if unchanged."""

    events: list[EventRow] = field(default_factory=list)
    tasks: list[TaskRow] = field(default_factory=list)
    updates: list[UpdateRow] = field(default_factory=list)
    rounds: list[RoundRow] = field(default_factory=list)
    evaluations: list[EvaluationRow] = field(default_factory=list)
    own_evaluations: list[OwnEvaluationRow] = field(default_factory=list)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    synced: int | None = None

    @property
    def last_seq(self) -> int | None:
        """Number of its last event, None without one."""
        last = self.updates[-1].seq if self.updates else None
        if self.events and (last is None or self.events[-1].seq > last):
            last = self.events[-1].seq
        return last

    def __bool__(self) -> bool:
        return any((self.events, self.tasks, self.updates, self.rounds, self.evaluations, self.checkpoints))
