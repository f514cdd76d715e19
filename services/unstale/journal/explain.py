"""How a version came about: which updates made it, with what weight, and why its round closed when it did."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from unstale.compensators import Compensated, MeasuredError
from unstale.errors import UserError
from unstale.journal.close_reason import CloseReason
from unstale.journal.replay import RecordedRun
from unstale.journal.rows import RoundRow, UpdateRow
from unstale.learner.bounds import NormBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberExplained:
    """An update in a round. staleness: rounds. weight: in the step. share: of the sum of all weights, without their
    signs; None where that is no number. loss: nats. arrived_s: run time. into_round_s: since the round was opened, less
    than 0 for one that came before. norm: L2 norm of the update, None where it was not measured. bound: on it then, by
    the norms that are recorded and the `server.norm_max` that the run began with; None where there was none, or only
    that of the first updates. compensation: what it was replaced by before the step; None where nobody would.
    """

    client_id: int
    task_id: int
    base_version: int
    staleness: int
    weight: float
    share: float | None
    loss: float
    num_examples: int
    arrived_s: float
    into_round_s: float
    norm: float | None
    bound: float | None
    compensation: Compensated | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundExplained:
    """A round. version: that it made. last_version: of the run so far. why: it closed then, in a sentence. opened_s,
    closed_s, applied_s: run time. rejected: updates by reason, since the round before was closed. accuracy, loss: of
    the version, None when it was not measured. errors: of older estimates, told by these updates. The others as in
    `RoundRow`."""

    version: int
    last_version: int
    why: str
    opened_s: float
    closed_s: float
    applied_s: float
    compensate_s: float
    aggregate_s: float
    learning_rate: float
    rate_factor: float
    overflowed: bool
    digest: str
    errors: tuple[MeasuredError, ...]
    members: tuple[MemberExplained, ...]
    rejected: Mapping[str, int]
    accuracy: float | None
    loss: float | None


def explain(run: RecordedRun, version: int | None = None) -> RoundExplained:
    """How a version came about, the last one unless it is named. Raises UserError when no round made it."""
    database = run.database
    measured = {row.version: row for row in database.evaluations()}
    last = max(
        (row.version for row in database.rounds(max(measured, default=0))), default=max(measured, default=0)
    )
    version = last if version is None else version
    _check_was_made(version, last)
    row = next(database.rounds(version - 1))
    before = next(database.rounds(version - 2)) if version > 1 else None
    updates = list(database.updates_of(version))
    evaluation = measured.get(version)
    return RoundExplained(
        version=version,
        last_version=last,
        why=CloseReason(run, row, before, updates).sentence(),
        opened_s=row.closed_s - row.wait_s,
        closed_s=row.closed_s,
        applied_s=row.applied_s,
        compensate_s=row.compensate_s,
        aggregate_s=row.aggregate_s,
        learning_rate=row.learning_rate,
        rate_factor=row.rate_factor,
        overflowed=row.overflowed,
        digest=row.digest,
        errors=() if row.compensation is None else row.compensation.errors,
        members=_members(row, updates, _bounds_then(run, updates)),
        rejected=dict(Counter(update.reason or "" for update in _refused(run, row, before))),
        accuracy=None if evaluation is None else evaluation.accuracy,
        loss=None if evaluation is None else evaluation.loss,
    )


def _check_was_made(version: int, last: int) -> None:
    if last == 0:
        raise UserError("the run has no rounds yet; ask again when a version was made")
    if version == 0:
        raise UserError(
            f"ROUND is 0, the model that the run began with: no round made it; expected 1 to {last}"
        )
    if not 1 <= version <= last:
        raise UserError(f"ROUND is {version}, expected 1 to {last}, the last version that was made")


def _bounds_then(run: RecordedRun, updates: Sequence[UpdateRow]) -> Mapping[int, float]:
    """The bound on the norm of each update when it came, by its seq; where there was one."""
    asked = {update.seq for update in updates if update.norm is not None}
    if not asked:
        return {}
    # What bounds the first updates needs the initial model, which is not looked at here.
    bounds = NormBounds(
        run.settings.server.norm_max, clients=run.settings.clients, model_norm=math.inf, buffers_norm=math.inf
    )
    found: dict[int, float] = {}
    for update in run.database.updates_after(0):
        if update.seq > max(asked):
            break
        if update.seq in asked:
            found[update.seq] = bounds.bounds(update.local_rate).update
        bounds.replay(update.client_id, update.base_version, update.norms, update.reason)
    return {seq: bound for seq, bound in found.items() if bound < math.inf}


def _members(
    row: RoundRow, updates: Sequence[UpdateRow], bounds: Mapping[int, float]
) -> tuple[MemberExplained, ...]:
    total = math.fsum(abs(member.weight) for member in row.members)
    return tuple(
        MemberExplained(
            client_id=update.client_id,
            task_id=update.task_id,
            base_version=update.base_version,
            staleness=member.staleness,
            weight=member.weight,
            share=abs(member.weight) / total if total > 0 else None,
            loss=update.loss,
            num_examples=update.num_examples,
            arrived_s=update.at_s,
            into_round_s=update.at_s - (row.closed_s - row.wait_s),
            norm=update.norm,
            bound=bounds.get(update.seq),
            compensation=None if row.compensation is None else row.compensation.updates[place],
        )
        for place, (update, member) in enumerate(zip(updates, row.members, strict=True))
    )


def _refused(run: RecordedRun, row: RoundRow, before: RoundRow | None) -> Iterator[UpdateRow]:
    """Updates that were rejected since the round before was closed, until this one was."""
    since_s, seq = -math.inf, 0
    if before is not None:
        since_s = before.closed_s
        seq = max((update.seq for update in run.database.updates_of(before.version)), default=0)
    for update in run.database.updates_after(seq):
        if update.at_s > row.closed_s:
            return
        if update.reason is not None and update.at_s > since_s:
            yield update
