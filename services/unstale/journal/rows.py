"""What the journal remembers, one type for each kind of record. Pure.

Named tuples: a row is made for every update, and a frozen dataclass takes several times as long.

`at_s` is run time: seconds on the run's own clock, which goes on from where it stood when a server starts again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unstale.compensators import Compensated, MeasuredError
from unstale.learner.row_checks import Norms


class Place(NamedTuple):
    """Where a row's bytes lie. segment: its number. offset, size_bytes: in that file. checksum: xxh3_64 of them."""

    segment: int
    offset: int
    size_bytes: int
    checksum: int


class EventRow(NamedTuple):
    """An event that the coordinator handled. seq: counts them from 1. kind: the event's type. fields: its others, JSON
    values. The arrival of an update is kept as an `UpdateRow` alone."""

    seq: int
    at_s: float
    kind: str
    fields: Mapping[str, Any]


class TaskRow(NamedTuple):
    """A task that was given. number: how many its client was given before."""

    task_id: int
    client_id: int
    number: int
    version: int
    at_s: float


class UpdateRow(NamedTuple):
    """An update that came, and the first verdict on it. seq: of that event. reason: None exactly for one that is
    accepted, which alone has a handle and a place. norm, norm_buffers, norm_extra: Euclidean norms of its vectors, None
    where it has no such vector or nobody measured it. The others as in `learner.updates.StagedUpdate`."""

    seq: int
    at_s: float
    client_id: int
    task_id: int
    base_version: int
    outcome: str
    reason: str | None
    num_examples: int
    batch_examples: int
    loss: float
    local_rate: float
    handle: int | None = None
    place: Place | None = None
    norm: float | None = None
    norm_buffers: float | None = None
    norm_extra: float | None = None

    @property
    def norms(self) -> Norms | None:
        """The norms of its vectors; None where nobody measured them."""
        return None if self.norm is None else Norms(self.norm, self.norm_buffers, self.norm_extra)


class MemberRow(NamedTuple):
    """An update in a round that was applied. staleness: rounds. weight: in the step."""

    handle: int
    staleness: int
    weight: float


class CompensationRow(NamedTuple):
    """What became of the updates of a round before the step; fields as in `learner.Compensation`. is_kept: whether a
    file holds what it was made with."""

    updates: tuple[Compensated, ...]
    errors: tuple[MeasuredError, ...]
    fallbacks: dict[str, int]
    is_kept: bool


class RoundRow(NamedTuple):
    """A round that was applied. version: that it made. digest: SHA-256 of what it made, hex. closed_s: when the
    coordinator closed it. wait_s, compensate_s, aggregate_s: how long it was open, how long stale updates were
    compensated, and how long the step took. members: in order of arrival. compensation: what became of them before the
    step, None where there is no compensator."""

    version: int
    closed_s: float
    applied_s: float
    wait_s: float
    compensate_s: float
    aggregate_s: float
    learning_rate: float
    rate_factor: float
    overflowed: bool
    digest: str
    members: tuple[MemberRow, ...]
    compensation: CompensationRow | None = None


class EvaluationRow(NamedTuple):
    """A version was measured. accuracy: in [0, 1]. loss: nats. class_accuracy: by class, None where the test set has no
    example of one."""

    version: int
    at_s: float
    accuracy: float
    loss: float
    class_accuracy: tuple[float | None, ...]
    evaluate_s: float


class OwnEvaluationRow(NamedTuple):
    """A client measured the version of a task on its own test examples, and said so with the task's update, which was
    accepted. seq: of that update. accuracy: correct / examples. loss: nats."""

    seq: int
    client_id: int
    version: int
    accuracy: float
    loss: float
    examples: int


class CheckpointRow(NamedTuple):
    """A checkpoint that is whole on disk. seq: of the last event that it covers. file: its name."""

    version: int
    seq: int
    file: str
    size_bytes: int
    at_s: float


@dataclass(slots=True)
class Batch:
    """What happened in one turn, stored in one transaction or not at all. synced: seq up to which all is known to be on
    the disk itself, by now; None when that is nothing new."""

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
        """Of the last event in it, None without any."""
        last = self.updates[-1].seq if self.updates else None
        if self.events and (last is None or self.events[-1].seq > last):
            last = self.events[-1].seq
        return last

    def __bool__(self) -> bool:
        return any((self.events, self.tasks, self.updates, self.rounds, self.evaluations, self.checkpoints))
